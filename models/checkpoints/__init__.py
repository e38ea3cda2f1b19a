"""Checkpoints: reads our weights and those of other projects, writes ours."""
