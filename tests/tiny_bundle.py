"""A bundle of a few kilobytes with seeded random weights, made by onnx alone (no torch).

The encoder averages 4 x 4 patches into tokens, the head pools the tokens into five logits.
Different photos give clearly different logits, and a row depends on its own image only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from service.bundle import Bundle, BundleDraft, GraphName, write_bundle
from service.card import (
    Activation,
    InputContract,
    Label,
    ModelCard,
    Precision,
    Provenance,
    TrainedHead,
)

SIDE = 16
PATCH = 4
TOKENS = (SIDE // PATCH) ** 2
WIDTH = 8
TINY_LABELS = (
    Label(name="cat", threshold=0.4, precision=0.9, recall=0.8, positives=20),
    Label(name="dog", threshold=0.6, precision=0.8, recall=0.7, positives=30),
    Label(name="car", threshold=0.5, precision=0.7, recall=0.9, positives=40),
    Label(name="tree", description="any tall plant"),
    Label(name="person", threshold=0.3, precision=0.6, recall=0.9, positives=50),
)
Graphs = Mapping[GraphName, Mapping[Precision, bytes]]


def tiny_card(
    name: str = "tiny",
    *,
    num_labels: int = len(TINY_LABELS),
    activation: Activation = "sigmoid",
    input_contract: InputContract | None = None,
) -> ModelCard:
    """Returns the card of a tiny model."""
    return ModelCard(
        name=name,
        version="1.0",
        license="Apache-2.0",
        provenance=Provenance(
            backbone="tiny", checkpoint_sha256="0" * 64, training_data="none", tools={}
        ),
        input=input_contract
        or InputContract(height=SIDE, width=SIDE, resize_mode="squash", interpolation="bilinear"),
        trained_head=TrainedHead(kind="gap", num_labels=num_labels, activation=activation),
    )


def tiny_encoder(seed: int = 0, *, side: int = SIDE, output: str = "tokens") -> bytes:
    """Returns the encoder: uint8 [B, side, side, 3] -> float32 [B, S, C]."""
    random = np.random.default_rng(seed)
    kernel = random.normal(0, 0.3, (WIDTH, 3, PATCH, PATCH)).astype(np.float32)
    constants: dict[str, ArrayLike] = {
        "kernel": kernel,
        "scale": np.float32(1 / 127.5),
        "one": np.float32(1),
        "flat": np.array([0, WIDTH, -1], np.int64),
    }
    nodes = [
        helper.make_node("Cast", ["images"], ["bytes"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["bytes", "scale"], ["scaled"]),
        helper.make_node("Sub", ["scaled", "one"], ["centred"]),
        helper.make_node("Transpose", ["centred"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["planes", "kernel"], ["patches"], strides=[PATCH, PATCH]),
        helper.make_node("Relu", ["patches"], ["active"]),
        helper.make_node("Reshape", ["active", "flat"], ["columns"]),
        helper.make_node("Transpose", ["columns"], [output], perm=[0, 2, 1]),
    ]
    image = helper.make_tensor_value_info("images", TensorProto.UINT8, ["B", side, side, 3])
    tokens = helper.make_tensor_value_info(
        output, TensorProto.FLOAT, ["B", (side // PATCH) ** 2, WIDTH]
    )
    return serialize_graph(nodes, image, tokens, constants)


def tiny_head(seed: int = 1, *, num_labels: int = len(TINY_LABELS), width: int = WIDTH) -> bytes:
    """Returns the head: float32 [B, S, C] -> logits float32 [B, N]."""
    random = np.random.default_rng(seed)
    constants: dict[str, ArrayLike] = {
        "weight": random.normal(0, 2, (width, num_labels)).astype(np.float32),
        "bias": random.normal(0, 1, num_labels).astype(np.float32),
        "axis": np.array([1], np.int64),
    }
    nodes = [
        helper.make_node("ReduceMean", ["tokens", "axis"], ["pooled"], keepdims=0),
        helper.make_node("MatMul", ["pooled", "weight"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["logits"]),
    ]
    tokens = helper.make_tensor_value_info("tokens", TensorProto.FLOAT, ["B", "S", width])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", num_labels])
    return serialize_graph(nodes, tokens, logits, constants)


def serialize_graph(
    nodes: Sequence[onnx.NodeProto],
    source: onnx.ValueInfoProto,
    target: onnx.ValueInfoProto,
    constants: Mapping[str, ArrayLike],
) -> bytes:
    """Returns a checked, serialized ONNX model."""
    weights = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    graph = helper.make_graph(list(nodes), "tiny", [source], [target], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def tiny_graphs() -> Graphs:
    """Returns both graphs; the `int8` variant has other weights, so that tests can tell."""
    return {
        "encoder": {"fp32": tiny_encoder(), "int8": tiny_encoder(seed=2)},
        "trained_head": {"fp32": tiny_head(), "int8": tiny_head()},
    }


def write_tiny_bundle(
    parent: Path,
    card: ModelCard | None = None,
    labels: Sequence[Label] = TINY_LABELS,
    graphs: Graphs | None = None,
) -> Bundle:
    """Writes a tiny bundle into `parent`, under its model's name."""
    card = card or tiny_card()
    draft = BundleDraft(card=card, labels=labels, graphs=graphs or tiny_graphs())
    return write_bundle(parent / card.name, draft)
