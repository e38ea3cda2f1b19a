"""The bundle: a folder with one model."""
