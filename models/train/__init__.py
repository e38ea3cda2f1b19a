"""Training: labelled photos -> checkpoint.

`recipe.py` (what to do) -> `build.py`, `start.py` (the network) -> `pictures.py`, `views.py`
(photos -> tensors) -> `features.py` (the frozen part of the backbone, run once) -> `loop.py`
(epochs, kept by `state.py`) -> `__main__.py` (the command).
"""

from models.commands import need_extra

need_extra("pip install 'ml-decoder-serve[train]'", "accelerate", "filelock")
