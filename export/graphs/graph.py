"""Questions about ONNX graphs, and the pair of graphs that maps pixels to logits.

In: ONNX models. Out: sets of nodes by role, logits of photos. Used by every later stage.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from service.bundle.manifest import GraphName

FloatArray = NDArray[np.float32]
PixelArray = NDArray[np.uint8]
Graphs = Mapping[GraphName, onnx.ModelProto]
"""The graphs of one precision: the encoder and those of the heads that there are."""

PIXELS_TO_LOGITS: tuple[GraphName, ...] = ("encoder", "trained_head")
"""The chain that int8 is searched for and accuracy is measured on."""

PIXELS_TO_OPEN_LOGITS: tuple[GraphName, ...] = ("encoder", "label_encoder", "open_head")
"""The same for open labels: what an `OpenChain` opens."""

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
        node.name
        for node in model.graph.node
        if node.op_type in WEIGHTED_OPS and node.input[1] in constants
    )


def prelude_nodes(model: onnx.ModelProto) -> frozenset[str]:
    """Returns the nodes before the first weighted layer: scaling and normalisation.

    They work on exact pixel values, so no smaller number format should touch them.
    """
    layers = set(weighted_layers(model))
    reached: set[str] = set()
    prelude = set()
    for node in model.graph.node:
        if node.name in layers or reached.intersection(node.input):
            reached.update(node.output)
        else:
            prelude.add(node.name)
    return frozenset(prelude)


def hide_outputs(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[onnx.ValueInfoProto]]:
    """Returns a copy of a model with its first output alone, and the outputs that it lost.

    They are still computed in it, under their names.
    """
    alone = onnx.ModelProto()
    alone.CopyFrom(model)
    hidden = list(model.graph.output[1:])
    del alone.graph.output[1:]
    return alone, hidden


def open_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Opens a model on the CPU with ONNX Runtime's default optimisations, as the service does."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    # Two sessions take turns here; spinning threads of one would slow the other.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


class Chain:
    """Encoder and head opened one behind the other: pixels -> logits."""

    def __init__(self, graphs: Graphs) -> None:
        """Opens both graphs on the CPU."""
        self._encoder = open_session(graphs["encoder"])
        self._head = open_session(graphs["trained_head"])

    def encode(self, pixels: PixelArray) -> FloatArray:
        """Maps pixels uint8 [B, H, W, 3] to tokens float32 [B, S, C]."""
        return np.asarray(self._encoder.run(["tokens"], {"images": pixels})[0])

    def predict(self, pixels: PixelArray) -> FloatArray:
        """Maps pixels uint8 [B, H, W, 3] to logits float32 [B, N]."""
        tokens = self.encode(pixels)
        return np.asarray(self._head.run(["logits"], {"tokens": tokens})[0])


class OpenChain:
    """Encoder and open head opened one behind the other: pixels -> logits of some labels."""

    def __init__(self, graphs: Graphs, embeddings: FloatArray) -> None:
        """Opens the graphs on the CPU and encodes labels float32 [L, E]."""
        self._encoder, self._head = (open_session(graphs[n]) for n in ("encoder", "open_head"))
        encode = open_session(graphs["label_encoder"])
        self.queries: FloatArray = encode.run(["queries"], {"embeddings": embeddings})[0]

    def encode(self, pixels: PixelArray) -> FloatArray:
        """Maps pixels uint8 [B, H, W, 3] to tokens float32 [B, S, C]."""
        return np.asarray(self._encoder.run(["tokens"], {"images": pixels})[0])

    def predict(self, pixels: PixelArray) -> FloatArray:
        """Maps pixels uint8 [B, H, W, 3] to logits float32 [B, L]."""
        feeds = {"tokens": self.encode(pixels), "queries": self.queries}
        return np.asarray(self._head.run(["logits"], feeds)[0])
