"""Networks, their heads, checkpoints and training. Start at `network.py`."""

from models.commands import need_extra

need_extra("pip install 'ml-decoder-serve[export]', or [train] to train", "torch", "timm")
