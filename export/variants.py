"""One network in several precisions, all made of verified fp32 graphs."""

import logging
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import onnx

from export import ExportError
from export.accuracy import predict_logits
from export.graphs.graph import Graphs
from export.graphs.optimise import compact_weights, halve, optimise
from export.graphs.trace import trace_encoder, trace_heads
from export.graphs.verify import (
    COMPACT_TOLERANCE,
    FP32_TOLERANCE,
    HALF_TOLERANCE,
    NUM_IMAGES,
    Deviation,
    VerificationError,
    make_noise,
    verify_graphs,
    verify_head,
)
from export.int8.search import MIN_AGREEMENT, find_int8, variation_to_noise
from export.sources.labelled_photos import LabelledPhotos
from export.sources.trained import Source
from models.heads.cosine import CosineHead
from models.heads.maps import find_grid
from models.heads.zero_shot import ZeroShotMLDecoder
from service.bundle.card import Device, Precision
from service.bundle.manifest import MAP_GRAPHS, GraphName

# Not in float16: labels and maps have to be the same on every device.
_EXACT_GRAPHS: tuple[GraphName, ...] = (*MAP_GRAPHS, "label_encoder")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Variants:
    """The graphs of a bundle; fp32 is always present, the default of devices not in `defaults`."""

    graphs: dict[Precision, Graphs]
    defaults: dict[Device, Precision]

    @property
    def measured(self) -> list[Graphs]:
        """The graphs of each precision, a CPU's default first; some exist in fp32 only."""
        exact = self.graphs["fp32"]
        order = dict.fromkeys((self.defaults.get("cpu", "fp32"), *self.graphs))
        return [{**exact, **self.graphs[precision]} for precision in order]


def make_variants(
    source: Source,
    measured: tuple[LabelledPhotos, LabelledPhotos] | None,
    precisions: Collection[Precision],
    *,
    compact: bool,
) -> Variants:
    """Makes fp32 and the other precisions; int8 becomes the CPU's default if it agrees with fp32.

    `measured` has photos for the ranges of int8 and others to compare it with fp32 on; labels are
    not used. Raises VerificationError if a graph deviates from torch, ExportError for int8 without
    photos.
    """
    if "int8" in precisions and measured is None:
        raise ExportError(
            "int8 needs photos to measure the ranges of values on: give --photos, or --background "
            "with 200 photos without labels"
        )
    network, spec = source.network, source.network.config.input
    pixels = make_noise(NUM_IMAGES, spec)
    if measured is not None:
        photos = measured[1].sample(NUM_IMAGES).read()
        pixels[: len(photos)] = photos
    encoder = optimise(trace_encoder(network.backbone, spec))
    exact: Graphs = {"encoder": encoder, **trace_heads(network.head, *_read_grid(encoder, source))}
    graphs = make_formats(
        exact,
        lambda graphs, tolerance: verify_graphs(network, graphs, spec, pixels, tolerance),
        compact=compact,
        half="fp16" in precisions,
    )
    if "int8" not in precisions or measured is None:
        return Variants(graphs, {})
    ranges, others = measured
    # Labels along the axes of the texts' space: their logits are the photo's embedding.
    axes = None
    if isinstance(network.head, CosineHead):
        axes = np.eye(network.head.config.embedding_width, dtype=np.float32)
    expected = predict_logits(exact, others, axes)

    def measure_agreement(graphs: Graphs) -> float:
        return variation_to_noise(expected, predict_logits({**exact, **graphs}, others, axes))

    int8 = find_int8(exact, ranges.read(), measure_agreement, axes)
    defaults: dict[Device, Precision] = {"cpu": "int8"} if int8.agreement >= MIN_AGREEMENT else {}
    logger.info(
        "int8: %d layers in float, %.1f dB (default from %.0f); the CPU's default is %s",
        *(len(int8.kept_float), int8.agreement, MIN_AGREEMENT),
        defaults.get("cpu", "fp32"),
    )
    return Variants({**graphs, "int8": int8.graphs}, defaults)


def add_open_head(
    variants: Variants, head: ZeroShotMLDecoder | CosineHead, source: Source, *, compact: bool
) -> Variants:
    """Adds an open head in fp32 and, if the network has it, fp16.

    No int8: at widths fast enough for 1,000 labels it is larger and no faster than float32.
    """
    formats = make_formats(
        trace_heads(head, *_read_grid(variants.graphs["fp32"]["encoder"], source)),
        lambda graphs, tolerance: verify_head(head, graphs, tolerance),
        compact=compact,
        half="fp16" in variants.graphs,
    )
    graphs: dict[Precision, Graphs] = {
        precision: {**existing, **formats.get(precision, {})}
        for precision, existing in variants.graphs.items()
    }
    return Variants(graphs, variants.defaults)


def make_formats(
    exact: Graphs, verify: Callable[[Graphs, float], Deviation], *, compact: bool, half: bool
) -> dict[Precision, Graphs]:
    """Verifies float32 graphs; makes and verifies those with 16-bit weights and in fp16.

    fp16 is left out, with a line in the log, if it deviates too much: values may overflow.
    """
    worst = verify(exact, FP32_TOLERANCE)
    logger.info("equals torch within %.1e (%s)", worst.value, worst.case)
    formats: dict[Precision, Graphs] = {"fp32": exact}
    if compact:
        formats["fp32"] = {name: compact_weights(model) for name, model in exact.items()}
        verify(formats["fp32"], COMPACT_TOLERANCE)
    if half:
        halves = {n: halve(model) for n, model in exact.items() if n not in _EXACT_GRAPHS}
        try:
            verify({**exact, **halves}, HALF_TOLERANCE)
            formats["fp16"] = halves
        except VerificationError as error:
            logger.warning("left out fp16: %s", error)
    return formats


def _read_grid(encoder: onnx.ModelProto, source: Source) -> tuple[int, int, tuple[int, int] | None]:
    """Returns S and C of the encoder's tokens, and their rows and columns."""
    _, tokens, width = (dim.dim_value for dim in encoder.graph.output[0].type.tensor_type.shape.dim)
    if source.prefix_tokens == "keep":
        return tokens, width, None  # no maps: these tokens have no place
    if isinstance(source.network.head, CosineHead):
        side = math.isqrt(tokens - 1)  # patches of a square; a rest at its edges is not seen
        return tokens, width, (side, side)
    return tokens, width, find_grid(tokens, source.contract.height, source.contract.width)
