"""Training of the open head: photos, captions' concepts and a teacher -> checkpoint.

`recipe.py` (what to do) -> `data.py` (names and targets) -> `tokens.py` (the frozen encoder and
the teacher, run once) -> `losses.py` -> `loop.py` (epochs) -> `__main__.py` (the command).
"""

from models.commands import need_extra

need_extra("pip install 'ml-decoder-serve[train]'", "accelerate", "filelock")
