"""Training: labelled photos -> checkpoint.

`recipe.py` (what to do) -> `views.py` (photos -> tensors) -> `features.py` (the frozen part
of the backbone, run once) -> `loop.py` (epochs) -> `__main__.py` (the command).
"""
