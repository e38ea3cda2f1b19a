from pathlib import Path

from models.checkpoints.checkpoint import read_checkpoint
from models.checkpoints.description import NO_HINTS, Hints
from models.config import NetworkConfig


def read_config(path: Path | str, hints: Hints = NO_HINTS) -> NetworkConfig:
    """Reads the configuration of a checkpoint that has a backbone."""
    config = read_checkpoint(path, hints).config
    assert config is not None
    return config
