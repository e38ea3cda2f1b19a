"""Roles of nodes in ONNX graphs, sessions, and the graphs from pixels to logits in a row."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from service.bundle.manifest import GraphName
from service.engine.sessions import make_int8_exact
from service.images.decode import PixelArray

FloatArray = NDArray[np.float32]
EmbedTexts = Callable[[Sequence[str]], FloatArray]
"""Texts -> embeddings float32 [L, E] of length 1, as the service computes them."""
Graphs = Mapping[GraphName, onnx.ModelProto]  # of one precision

OPSET = 20  # ONNX operator set: the first with Gelu, read by ONNX Runtime 1.18 and later
# Graphs that `EncoderAndHead` opens: for trained labels, also in int8, and for open labels.
PIXELS_TO_LOGITS: tuple[GraphName, ...] = ("encoder", "trained_head")
PIXELS_TO_OPEN_LOGITS: tuple[GraphName, ...] = ("encoder", "label_encoder", "open_head")

WEIGHTED_OPS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def constant_names(model: onnx.ModelProto) -> frozenset[str]:
    """Returns the names of the values that do not depend on the graph's input."""
    constants = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if all(name in constants for name in node.input if name):
            constants.update(node.output)
    return frozenset(constants)


def weighted_layers(model: onnx.ModelProto) -> tuple[str, ...]:
    """Returns the nodes that multiply by a stored weight, in the order of the graph."""
    constants = constant_names(model)
    return tuple(
        n.name for n in model.graph.node if n.op_type in WEIGHTED_OPS and n.input[1] in constants
    )


def prelude_nodes(model: onnx.ModelProto) -> frozenset[str]:
    """Returns the nodes before the first weighted layer; on exact pixels, they stay in float32."""
    layers, prelude = weighted_layers(model), set()
    after: set[str] = set()
    for node in model.graph.node:
        if node.name in layers or not after.isdisjoint(node.input):
            after.update(node.output)
        else:
            prelude.add(node.name)
    return frozenset(prelude)


def open_session(model: onnx.ModelProto | bytes | str) -> onnxruntime.InferenceSession:
    """Opens a model, or that in a file, on the CPU as the service does.

    Int8 layers give the same on every CPU.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    # Two sessions take turns; spinning threads of one would slow the other.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(
        model.SerializeToString() if isinstance(model, onnx.ModelProto) else model,
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=make_int8_exact(options),
    )


class EncoderAndHead:
    """Encoder and head, opened on the CPU: pixels -> logits."""

    def __init__(self, graphs: Graphs, embeddings: FloatArray | None = None) -> None:
        """Opens the trained head, or the open head if label embeddings float32 [L, E] are given."""
        self._encoder = open_session(graphs["encoder"])
        self.photo_shape = (1, *self._encoder.get_inputs()[0].shape[1:])
        self._head = open_session(graphs["trained_head" if embeddings is None else "open_head"])
        self._queries: dict[str, FloatArray] = {}
        if embeddings is not None:
            encoder = open_session(graphs["label_encoder"])
            self._queries["queries"] = encoder.run(["queries"], {"embeddings": embeddings})[0]

    def encode(self, pixels: PixelArray) -> FloatArray:
        """Maps pixels uint8 [B, H, W, 3] to tokens float32 [B, S, C]."""
        return np.asarray(self._encoder.run(["tokens"], {"images": pixels})[0])

    def predict(self, pixels: PixelArray) -> FloatArray:
        """Maps pixels uint8 [B, H, W, 3] to logits float32 [B, N]; [B, L] for open labels."""
        feeds = {"tokens": self.encode(pixels), **self._queries}
        return np.asarray(self._head.run(["logits"], feeds)[0])
