"""Exports a checkpoint as a bundle; start with `build.py`."""

import os

from models.commands import RequestError, need_extra

need_extra("pip install -e '.[export]' in the checkout", "onnx", "onnxruntime", "onnxscript")

# Official builds of ONNX Runtime send telemetry unless this is set before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


class ExportError(RequestError):
    """An export failed; the message is one line."""
