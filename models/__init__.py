"""Networks, their heads, checkpoints and training. Start at `network.py`."""

from models.commands import need_extra

need_extra("pip install -e '.[export]' in the checkout, or '.[train]' to train", "torch", "timm")
