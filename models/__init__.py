"""Networks, their heads, checkpoints and training. Start at `network.py`.

`load_checkpoint` reads a checkpoint as a torch module, or raises `CheckpointError`.
"""

from typing import TYPE_CHECKING

from models.checkpoints.description import CheckpointError
from models.commands import need_extra

if TYPE_CHECKING:
    from models.checkpoints.checkpoint import load_checkpoint

__all__ = ["CheckpointError", "load_checkpoint"]

need_extra("pip install -e '.[export]' in the checkout, or '.[train]' to train", "torch", "timm")


def __getattr__(name: str) -> object:
    """Imports on first use: torch takes seconds, and commands refuse mistakes without it."""
    if name != "load_checkpoint":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from models.checkpoints.checkpoint import load_checkpoint

    return load_checkpoint
