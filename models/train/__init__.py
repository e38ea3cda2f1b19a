"""Training on labelled photos; `run.py` runs any task, also that of `train_open`."""

from models.commands import need_extra

need_extra("pip install -e '.[train]' in the checkout", "filelock")
