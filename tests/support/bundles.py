"""A bundle's graphs, run one behind the other in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from service.bundle.manifest import GraphName
from service.bundle.reader import Bundle

Array = NDArray[Any]


def run_bundle(bundle: Bundle, pixels: Array, embeddings: Array | None = None) -> Array:
    """Returns logits [B, N] of pixels uint8 [B, H, W, 3]; with embeddings [L, E], [B, L]."""
    tokens = _run(bundle, "encoder", images=pixels)
    if embeddings is None:
        return _run(bundle, "trained_head", tokens=tokens)
    queries = _run(bundle, "label_encoder", embeddings=embeddings)
    return _run(bundle, "open_head", tokens=tokens, queries=queries)


def _run(bundle: Bundle, graph: GraphName, **inputs: Array) -> Array:
    session = onnxruntime.InferenceSession(
        bundle.read_graph(graph, "fp32"), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, inputs)[0])
