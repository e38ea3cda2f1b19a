"""Training on labelled photos; `run.py` steps through any task, that of `train_open` too."""

from models.commands import need_extra

need_extra("pip install 'ml-decoder-serve[train]'", "accelerate", "filelock")
