"""Networks: backbones, heads, checkpoint readers and training.

Start at `network.py` for the architecture, `checkpoints.py` for files, `train` for
training.
"""

from models.commands import need_extra

need_extra("pip install 'ml-decoder-serve[export]', or [train] to train", "torch", "timm")

from models.checkpoints.checkpoint import load_checkpoint  # noqa: E402 - else it is Python that says it

__all__ = ["load_checkpoint"]
