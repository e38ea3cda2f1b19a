"""One network, several number formats: the verified fp32 graphs and what is made of them.

In: a `Source` and, where there are any, labelled photos. Out: `Variants`. Next: `build.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

import onnx
from torch import nn

from export.errors import ExportError
from export.graphs.graph import Graphs
from export.graphs.half import halve, name_half
from export.graphs.optimise import compact_weights, optimise
from export.graphs.trace import (
    trace_encoder,
    trace_head,
    trace_label_encoder,
    trace_open_head,
    trace_open_maps,
    trace_trained_maps,
)
from export.graphs.verify import (
    COMPACT_TOLERANCE,
    FP32_TOLERANCE,
    HALF_TOLERANCE,
    NUM_IMAGES,
    make_noise,
    verify_graphs,
    verify_maps,
    verify_open_head,
)
from export.int8.judge import Judge, choose_judge
from export.int8.search import Int8Graphs, find_int8
from export.sources.photos import Splits, read_pixels
from export.sources.trained import Source
from models.heads.maps import find_grid
from models.heads.ml_decoder import MLDecoder
from models.heads.query2label import Query2Label
from models.heads.zero_shot import ZeroShotMLDecoder
from service.bundle.card import Device, Precision
from service.bundle.manifest import MAP_GRAPHS, GraphName

# Labels and maps are the same on every device.
_EXACT_GRAPHS: tuple[GraphName, ...] = (*MAP_GRAPHS, "label_encoder")

CALIBRATION_PHOTOS = 256
"""Training photos that the ranges of int8 are measured on."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Variants:
    """The graphs of a bundle.

    Attributes:
        graphs: encoder and heads of each precision; fp32 is always there.
        defaults: what the service should run on a device where that is not fp32.
    """

    graphs: dict[Precision, Graphs]
    defaults: dict[Device, Precision]

    @property
    def served(self) -> Graphs:
        """What a CPU runs by default; a graph that comes in float32 alone is in that."""
        return {**self.graphs["fp32"], **self.graphs[self.defaults.get("cpu", "fp32")]}


def make_variants(
    source: Source, splits: Splits | None, precisions: Collection[Precision], compact: bool
) -> Variants:
    """Makes every asked-for variant; int8 becomes the CPU's default if the judge lets it.

    Args:
        source: what to trace.
        splits: labelled photos; int8 needs them.
        precisions: variants to make besides fp32.
        compact: store the fp32 weights in 16 bits.

    Raises:
        VerificationError: a float32 graph deviates from torch, or a float16 one by far.
        ExportError: int8 without photos.
    """
    if "int8" in precisions and splits is None:
        raise ExportError("int8 needs labelled photos to measure the ranges of values on")
    exact = make_fp32(source, splits)
    stored = exact
    if compact:
        stored = {name: compact_weights(model) for name, model in exact.items()}
        _verify(source, stored, splits, COMPACT_TOLERANCE)
    variants = Variants({"fp32": stored}, {})
    if "fp16" in precisions:
        half = {name: halve(model) for name, model in exact.items() if name not in _EXACT_GRAPHS}
        with name_half():
            _verify(source, {**exact, **half}, splits, HALF_TOLERANCE)
        variants.graphs["fp16"] = half
    if "int8" in precisions and splits is not None:
        judge = choose_judge(exact, source, splits.val)
        int8 = make_int8(exact, source, splits, judge)
        variants.graphs["int8"] = int8.graphs
        if int8.loss <= judge.limit:
            variants.defaults["cpu"] = "int8"
        _log.info(
            "int8 keeps %d layers in float; the CPU's default is %s",
            *(len(int8.kept_float), variants.defaults.get("cpu", "fp32")),
        )
    return variants


def make_fp32(source: Source, splits: Splits | None = None) -> Graphs:
    """Traces, optimises and verifies the float32 graphs.

    Args:
        source: what to trace.
        splits: photos to verify on; None takes seeded noise.

    Raises:
        VerificationError: a graph deviates from torch.
    """
    network = source.network
    encoder = optimise(trace_encoder(network.backbone, source.config.input))
    _, tokens, width = (dim.dim_value for dim in encoder.graph.output[0].type.tensor_type.shape.dim)
    grid = find_grid(tokens, source.contract.height, source.contract.width)
    graphs: Graphs = {"encoder": encoder, **trace_heads(network.head, tokens, width, grid)}
    _verify(source, graphs, splits, FP32_TOLERANCE)
    return graphs


def trace_heads(
    head: nn.Module, tokens: int, width: int, grid: tuple[int, int] | None = None
) -> Graphs:
    """Traces and optimises what a head is made of, for tokens [B, tokens, width].

    Args:
        head: the head.
        tokens: S.
        width: C.
        grid: rows and columns of the tokens; None leaves out the maps.
    """
    if isinstance(head, ZeroShotMLDecoder):
        graphs: dict[GraphName, onnx.ModelProto] = {
            "label_encoder": optimise(trace_label_encoder(head)),
            "open_head": optimise(trace_open_head(head, tokens, with_memory=grid is not None)),
        }
        if grid is not None:
            graphs["open_head_maps"] = optimise(trace_open_maps(head, grid))
        return graphs
    if grid is not None and isinstance(head, MLDecoder):
        return {
            "trained_head": optimise(trace_head(head, tokens, width, with_memory=True)),
            "trained_head_maps": optimise(trace_trained_maps(head, grid)),
        }
    any_tokens = not isinstance(head, Query2Label)  # whose positions fix the number
    return {"trained_head": optimise(trace_head(head, tokens, width, any_tokens=any_tokens))}


def make_int8(graphs: Graphs, source: Source, splits: Splits, judge: Judge) -> Int8Graphs:
    """Quantises float32 graphs, as well as the judge wants."""
    samples = read_pixels(splits.train.sample(CALIBRATION_PHOTOS), source.contract)
    return find_int8(graphs, samples, judge.measure_loss, judge.aim)


def _verify(source: Source, graphs: Graphs, splits: Splits | None, tolerance: float) -> None:
    spec = source.config.input
    pixels = make_noise(NUM_IMAGES, spec)
    if splits is not None:
        photos = read_pixels(splits.val.sample(NUM_IMAGES), source.contract)
        pixels[: len(photos)] = photos
    worst = verify_graphs(source.network, graphs, spec, pixels, tolerance)
    if isinstance(source.network.head, ZeroShotMLDecoder):
        opened = verify_open_head(source.network.head, graphs, tolerance)
        worst = max(worst, opened, key=lambda deviation: deviation.value)
    verify_maps(source.network.head, graphs, tolerance)
    _log.info("equals torch within %.1e (%s)", worst.value, worst.case)
