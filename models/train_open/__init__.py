"""Training of an open head on the tokens of a finished encoder, as another task of `train`."""

from models.commands import need_extra

need_extra("pip install -e '.[train]' in the checkout", "filelock")
