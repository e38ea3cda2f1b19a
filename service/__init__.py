"""The inference service: a bundle goes in, HTTP answers come out (never imports torch).

A request's way through the files: `http/` or `cli/` -> `pipeline` (`batcher` -> `inference`:
`images`, `engine` -> `scoring`) and back.
"""

import os

# Official builds of ONNX Runtime report to their maker unless told not to, before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
