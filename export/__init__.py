"""Weights become a bundle: trace, optimise, verify, shrink, measure, write.

Start at `build.py`, which tells the story from top to bottom; `python -m export` runs it.
"""

import os

from models.commands import need_extra

need_extra("pip install 'ml-decoder-serve[export]'", "onnx", "onnxruntime", "onnxscript")

# Official builds of ONNX Runtime report to their maker unless told not to, before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
