"""Networks: backbones, heads, checkpoint readers and training.

Start at `network.py` for the architecture, `checkpoints.py` for files, `train` for
training.
"""

from models.checkpoints import load_checkpoint

__all__ = ["load_checkpoint"]
