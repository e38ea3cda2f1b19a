"""The cost of each head by the number of labels: `python -m tests.benchmarks.heads`.

Prints parameters, FLOPs per image (torch's counter) and the latency of the head alone in ONNX
Runtime on one core, on 7 x 7 tokens of width 2048, after a backbone to compare with. Latency is the
median processor time of a call, which other programs hardly change. Heads have random weights and
their papers' widths; the largest takes minutes and gigabytes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from export.graphs.optimise import optimise
from export.graphs.trace import trace_encoder, trace_heads
from models.backbones.backbone import Backbone
from models.config import (
    GapConfig,
    HeadConfig,
    InputConfig,
    MLDecoderConfig,
    Query2LabelConfig,
    TransformerDecoderConfig,
)
from models.network import build_head
from tests.benchmarks.load import median_seconds

BACKBONE, STRIDE = "resnet50", 32
SIDE, WIDTH = 7, 2048
HEADS: dict[str, Callable[[int], HeadConfig]] = {
    "GAP": lambda n: GapConfig(num_classes=n, encoder_width=WIDTH),
    "ML-Decoder, full": lambda n: MLDecoderConfig(num_classes=n, encoder_width=WIDTH),
    **{
        f"ML-Decoder, {groups} groups": lambda n, groups=groups: MLDecoderConfig(
            num_classes=n, encoder_width=WIDTH, num_groups=groups
        )
        for groups in (100, 200)
    },
    "transformer decoder": lambda n: TransformerDecoderConfig(num_classes=n, encoder_width=WIDTH),
    "Query2Label": lambda n: Query2LabelConfig(
        num_classes=n,
        encoder_width=WIDTH,
        decoder_width=WIDTH,
        feedforward_width=4 * WIDTH,
        num_heads=4,
        grid=(SIDE, SIDE),
        input_projection=False,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.heads", description=__doc__)
    parser.add_argument("--labels", type=int, nargs="+", default=(80, 1000, 5000, 9605))
    parser.add_argument("--heads", nargs="+", default=list(HEADS), choices=list(HEADS))
    parser.add_argument("--batches", type=int, nargs="+", default=(1, 8))
    parser.add_argument("--seconds", type=float, default=5.0, help="measured for each cell")
    given = parser.parse_args()
    latencies = " | ".join(f"ms at batch {batch}" for batch in given.batches)
    print(f"| head | labels | parameters (M) | GFLOPs | {latencies} |")
    print("|---|---|---|---|" + "---|" * len(given.batches))
    cells = measure_backbone(given.batches, given.seconds)
    print(f"| {BACKBONE} alone | | {' | '.join(cells)} |", flush=True)
    for name in given.heads:
        for count in given.labels:
            cells = measure(HEADS[name](count), given.batches, given.seconds)
            print(f"| {name} | {count:,} | {' | '.join(cells)} |", flush=True)


def measure(config: HeadConfig, batches: Sequence[int], seconds: float) -> Iterator[str]:
    head = build_head(config).eval().requires_grad_(False)
    example = torch.zeros(1, SIDE * SIDE, WIDTH)
    yield from _size(head, example)
    model = trace_heads(head, SIDE * SIDE, WIDTH)["trained_head"]
    yield from _latencies(model, example.numpy(), batches, seconds)


def measure_backbone(batches: Sequence[int], seconds: float) -> Iterator[str]:
    backbone = Backbone(BACKBONE).eval().requires_grad_(False)
    side = STRIDE * SIDE
    yield from _size(backbone, torch.zeros(1, 3, side, side))
    images = np.zeros((1, side, side, 3), np.uint8)
    graph = trace_encoder(backbone, InputConfig(height=side, width=side))
    yield from _latencies(graph, images, batches, seconds)


def _size(module: nn.Module, example: Tensor) -> Iterator[str]:
    yield f"{sum(p.numel() for p in module.parameters()) / 1e6:.2f}"
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        module(example)
    yield f"{counter.get_total_flops() / 1e9:.3f}"


def _latencies(
    graph: onnx.ModelProto, example: npt.NDArray[Any], batches: Sequence[int], seconds: float
) -> Iterator[str]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    options.intra_op_num_threads = 1  # so that all the work is on the thread that is timed
    model = optimise(graph).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (source,) = session.get_inputs()
    for batch in batches:
        run = partial(session.run, None, {source.name: np.repeat(example, batch, axis=0)})
        yield f"{1000 * median_seconds(run, seconds, time.thread_time):.2f}"


if __name__ == "__main__":
    main()
