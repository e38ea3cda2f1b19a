"""Checkpoints: reading weights of ours and of other projects."""
