"""A private name of another package whose loss no other test would notice.

ruff's SLF001 finds new ones; `tests/service/process/test_protocol.py` has those of uvicorn.
"""

from pathlib import Path

import onnxruntime

BUNDLE = Path(__file__).parents[2] / "bundles" / "ml-decoder-lite0"


def test_session_has_the_copy_of_its_graph_that_the_engine_drops() -> None:
    session = onnxruntime.InferenceSession(BUNDLE / "open_head.fp32.onnx")
    assert hasattr(session, "_model_bytes"), "else a graph stays in memory twice"
