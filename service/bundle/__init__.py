"""The bundle: the folder that is one model."""
