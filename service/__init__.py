"""The inference service: a bundle goes in, HTTP answers come out; it never imports torch."""

import os

# Official builds of ONNX Runtime send telemetry; the variable is read at import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
