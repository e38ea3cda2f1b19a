"""The open head's graphs in every number format that the encoder has.

In: an `OpenSource` and the encoder's `Variants`. Out: the same with `label_encoder` and
`open_head` added, and the graph of its maps. Next: `open_calibrate.py`. The label encoder comes
in float32 alone: it runs once a label, and replicas on different devices have to agree on what a
label is. So do the maps, which run on the CPU.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx

from export.accuracy import measure_map, predict_open_logits
from export.graphs import FloatArray, Graphs, OpenChain, weighted_layers
from export.half import halve
from export.open_source import OpenSource
from export.optimise import compact_weights
from export.photos import Splits, read_pixels
from export.quantise import Feed, Quantiser
from export.source import Source
from export.variants import CALIBRATION_PHOTOS, MAX_MAP_LOSS, Variants, trace_heads
from export.verify import COMPACT_TOLERANCE, FP32_TOLERANCE, verify_maps, verify_open_head
from models.maps import find_grid
from service.card import Precision

_log = logging.getLogger(__name__)


def embed_names(opened: OpenSource, names: Sequence[str]) -> FloatArray:
    """Returns the embeddings of names in the head's template, float32 [L, E]."""
    return opened.text.embed_names(names, opened.template).numpy()


def add_open_head(
    variants: Variants, opened: OpenSource, source: Source, splits: Splits | None, compact: bool
) -> Variants:
    """Traces and verifies the open head, and adds it in every precision that is there.

    Args:
        variants: of the encoder and the trained head.
        opened: what to trace.
        source: the encoder's.
        splits: labelled photos; the int8 variant is measured on them.
        compact: store the fp32 weights in 16 bits.

    Raises:
        VerificationError: a float32 graph deviates from torch.
    """
    shape = variants.graphs["fp32"]["encoder"].graph.output[0].type.tensor_type.shape
    _, tokens, width = (dim.dim_value for dim in shape.dim)
    grid = find_grid(tokens, source.contract.height, source.contract.width)
    exact = trace_heads(opened.head, tokens, width, grid)
    worst = verify_open_head(opened.head, exact, FP32_TOLERANCE)
    verify_maps(opened.head, exact, FP32_TOLERANCE)
    _log.info("open head equals torch within %.1e (%s)", worst.value, worst.case)
    stored = exact
    if compact:
        stored = {name: compact_weights(model) for name, model in exact.items()}
        verify_open_head(opened.head, stored, COMPACT_TOLERANCE)
        verify_maps(opened.head, stored, COMPACT_TOLERANCE)
    graphs: dict[Precision, Graphs] = {
        "fp32": {**variants.graphs["fp32"], **stored},
    }
    if "fp16" in variants.graphs:
        graphs["fp16"] = {**variants.graphs["fp16"], "open_head": halve(exact["open_head"])}
    if "int8" in variants.graphs and splits is not None:
        head = _make_int8(graphs["fp32"], opened, source, splits)
        graphs["int8"] = {**variants.graphs["int8"], "open_head": head}
    return Variants(graphs, variants.defaults)


def _make_int8(
    graphs: Graphs, opened: OpenSource, source: Source, splits: Splits
) -> onnx.ModelProto:
    """Returns the int8 head, or the float one where int8 loses too much on trained labels."""
    labels = embed_names(opened, source.label_names)
    chain = OpenChain(graphs, labels)
    samples = read_pixels(splits.train.sample(CALIBRATION_PHOTOS), source.contract)

    def feeds() -> Iterator[Feed]:
        for photo in samples:
            yield {"tokens": chain.encode(photo[np.newaxis]), "queries": chain.queries}

    with tempfile.TemporaryDirectory() as folder:
        quantiser = Quantiser(graphs["open_head"], feeds(), Path(folder))
        head = quantiser.quantise(_sensitive_nodes(graphs["open_head"]))
    found = [
        measure_map(predict_open_logits(candidate, labels, splits.val, source.contract), splits.val)
        for candidate in (graphs, {**graphs, "open_head": head})
    ]
    _log.info("open head: int8 gives %.2f of %.2f mAP on trained labels", found[1], found[0])
    return head if found[0] - found[1] <= MAX_MAP_LOSS else graphs["open_head"]


def _sensitive_nodes(model: onnx.ModelProto) -> frozenset[str]:
    """Returns the nodes whose small differences decide the order of photos.

    These are ConSE, all that follows the mean of the tokens, up to the sum with the decoder's
    logits; and the decoder's last layer.
    """
    reached: set[str] = set()
    nodes = set()
    for node in model.graph.node:
        if node.op_type == "ReduceMean" or reached.intersection(node.input):
            reached.update(node.output)
            nodes.add(node.name)
    layers = [name for name in weighted_layers(model) if name not in nodes]
    return frozenset(nodes.union(layers[-1:]))
