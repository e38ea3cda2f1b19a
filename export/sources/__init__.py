"""Sources: checkpoints, photos and label sets that an export starts from."""
