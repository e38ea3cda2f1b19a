"""Foreign checkpoint layouts: other projects' tensors under this project's names."""
