"""What each head costs by the number of labels: `python -m tests.benchmarks.heads`.

In: nothing. Out: one table, Markdown: parameters, FLOPs of one image (torch's counter) and the
median latency of the head alone in ONNX Runtime on the CPU at batch 1 and 8, on 7 x 7 tokens of
width 2048. All heads have random weights and ML-Decoder's published widths; a transformer
decoder over thousands of labels takes minutes and gigabytes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import onnxruntime
import torch
from torch.utils.flop_counter import FlopCounterMode

from export.optimise import optimise
from export.trace import trace_head
from models.config import (
    GapConfig,
    HeadConfig,
    MLDecoderConfig,
    Query2LabelConfig,
    TransformerDecoderConfig,
)
from models.network import build_head
from models.query2label import Query2Label

LABELS = (80, 1000, 5000, 9605)
BATCHES = (1, 8)
SIDE = 7
WIDTH = 2048
HEADS: dict[str, Callable[[int], HeadConfig]] = {
    "GAP": lambda n: GapConfig(num_classes=n, encoder_width=WIDTH),
    "ML-Decoder, full": lambda n: MLDecoderConfig(num_classes=n, encoder_width=WIDTH),
    "ML-Decoder, 100 groups": lambda n: MLDecoderConfig(
        num_classes=n, encoder_width=WIDTH, num_groups=100
    ),
    "ML-Decoder, 200 groups": lambda n: MLDecoderConfig(
        num_classes=n, encoder_width=WIDTH, num_groups=200
    ),
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
    """Prints the table, a row as soon as it is measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.heads", description=__doc__)
    parser.add_argument("--labels", type=int, nargs="+", default=LABELS)
    parser.add_argument("--heads", nargs="+", default=list(HEADS), choices=list(HEADS))
    parser.add_argument("--seconds", type=float, default=5.0, help="measured for each cell")
    parser.add_argument("--threads", type=int, default=0, help="of ONNX Runtime; 0 = one a core")
    given = parser.parse_args()
    latencies = " | ".join(f"ms at batch {batch}" for batch in BATCHES)
    print(f"| head | labels | parameters (M) | GFLOPs | {latencies} |")
    print("|---|---|---|---|" + "---|" * len(BATCHES))
    for name in given.heads:
        for count in given.labels:
            cells = measure(HEADS[name](count), given.seconds, given.threads)
            print(f"| {name} | {count:,} | {' | '.join(cells)} |", flush=True)


def measure(config: HeadConfig, seconds: float, threads: int) -> Iterator[str]:
    """Yields the cells of one row."""
    head = build_head(config).eval()
    yield f"{sum(p.numel() for p in head.parameters()) / 1e6:.2f}"
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        head(torch.zeros(1, SIDE * SIDE, WIDTH))
    yield f"{counter.get_total_flops() / 1e9:.3f}"
    model = optimise(
        trace_head(head, SIDE * SIDE, WIDTH, any_tokens=not isinstance(head, Query2Label))
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    for batch in BATCHES:
        tokens = np.random.default_rng(0).random((batch, SIDE * SIDE, WIDTH), np.float32)
        run = partial(session.run, None, {"tokens": tokens})
        yield f"{1000 * time_calls(run, seconds):.2f}"


def time_calls(call: Callable[[], object], seconds: float) -> float:
    """Returns the median seconds of a call, repeated for so long, after two to warm up."""
    for _ in range(2):
        call()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
