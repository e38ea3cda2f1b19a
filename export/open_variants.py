"""The open head's graphs, traced, verified and added to the encoder's.

In: an `OpenSource` and the encoder's `Variants`. Out: the same with `label_encoder` and
`open_head` added, and the graph of its maps. Next: `open_calibrate.py`. The label encoder comes
in float32 alone: it runs once a label, and replicas on different devices have to agree on what a
label is. So do the maps, which run on the CPU. There is no int8 open head: at the widths that
1,000 labels can afford, it is larger and no faster than float32.
"""

from __future__ import annotations

import logging

from export.graphs.graph import Graphs
from export.graphs.half import halve, name_half
from export.graphs.optimise import compact_weights
from export.graphs.verify import (
    COMPACT_TOLERANCE,
    FP32_TOLERANCE,
    HALF_TOLERANCE,
    verify_maps,
    verify_open_head,
)
from export.sources.open import OpenSource
from export.sources.trained import Source
from export.variants import Variants, trace_heads
from models.heads.maps import find_grid
from service.bundle.card import Precision

_log = logging.getLogger(__name__)


def add_open_head(
    variants: Variants, opened: OpenSource, source: Source, compact: bool
) -> Variants:
    """Traces and verifies the open head, and adds it in every precision that is there.

    Args:
        variants: of the encoder and the trained head.
        opened: what to trace.
        source: the encoder's.
        compact: store the fp32 weights in 16 bits.

    Raises:
        VerificationError: a float32 graph deviates from torch, or a float16 one by far.
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
        half = halve(exact["open_head"])
        with name_half():
            verify_open_head(opened.head, {**exact, "open_head": half}, HALF_TOLERANCE)
        graphs["fp16"] = {**variants.graphs["fp16"], "open_head": half}
    if "int8" in variants.graphs:
        graphs["int8"] = variants.graphs["int8"]
    return Variants(graphs, variants.defaults)
