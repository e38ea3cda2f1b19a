"""Our engine on a GPU beside bare sessions there, and its scores beside the CPU's.

    python -m tests.benchmarks.gpu [--bundle BUNDLE] [--precision fp32,fp16]

In: a bundle, and a machine where ONNX Runtime has CUDA. Out: images a second of the engine at each
batch size and their ratio to a bare loop over the same sessions, whose copies go through the CPU's
memory; the same for sizes that change with every run, as they do under load; and the largest
difference to the CPU's scores. Exits with 1 if that is too large, with 2 without a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from service.bundle.card import Precision
from service.bundle.reader import Bundle, load_bundle
from service.engine.engine import Engine, open_engine
from service.engine.sessions import SessionConfig, open_session
from service.images.decode import PixelArray
from service.pipeline.scoring import compute_scores
from tests.support.engines import why_no_gpu

_TOLERANCES: dict[Precision, float] = {"fp32": 1e-3, "fp16": 2e-2, "int8": 5e-2}
_SIZES = (1, 2, 4, 8, 16, 32)
_CHANGING = (1, 4, 2, 8)


def time_a_run(run: Callable[[], object], seconds: float) -> float:
    """Returns the median seconds of `run`."""
    run()
    taken, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < 3:
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return float(np.median(taken))


def measure_sizes(bundle: Bundle, precision: Precision, seconds: float) -> None:
    """Prints a row for each batch size."""
    engine = open_on_gpu(bundle, precision, max_batch_size=max(_SIZES))
    encoder, head = (
        open_session(bundle, graph, SessionConfig("cuda", precision))
        for graph in ("encoder", "trained_head")
    )

    def run_ours(sizes: Sequence[int]) -> None:
        for size in sizes:
            engine.run(images[:size], [[None]] * size)

    def run_bare(sizes: Sequence[int]) -> None:
        for size in sizes:
            (tokens,) = encoder.run(["tokens"], {"images": images[:size]})
            head.run(["logits"], {"tokens": tokens})

    images = make_images(bundle, max(_SIZES))
    for sizes in (*((size,) for size in _SIZES), _CHANGING):
        bare = time_a_run(partial(run_bare, sizes), seconds)
        ours = time_a_run(partial(run_ours, sizes), seconds)
        cells = [precision, *(" ".join(map(str, sizes)), f"{sum(sizes) / ours:.0f}")]
        cells.append(f"{bare / ours:.2f}")
        print(f"| {' | '.join(cells)} |", flush=True)


def open_on_gpu(bundle: Bundle, precision: Precision, max_batch_size: int = 0) -> Engine:
    """Returns a warm engine."""
    engine = open_engine(bundle, device="cuda", precision=precision, max_batch_size=max_batch_size)
    engine.warm_up()
    return engine


def make_images(bundle: Bundle, size: int) -> PixelArray:
    """Returns noise of the size that the bundle takes, the same for all."""
    contract = bundle.card.input
    shape = (size, contract.height, contract.width, 3)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def compare_scores(bundle: Bundle, precision: Precision) -> float:
    """Returns the largest difference of a score between GPU and CPU, which runs in fp32."""
    images, found = make_images(bundle, 4), []
    cpu = open_engine(bundle, device="cpu", precision="fp32")
    for engine in (cpu, open_on_gpu(bundle, precision)):
        logits = np.stack([one for (one,), _ in engine.run(images, [[None]] * 4)])
        found.append(compute_scores(logits, "sigmoid"))
    return float(max(np.abs(scores - found[0]).max() for scores in found[1:]))


def main() -> int:
    """Measures as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=Path("bundles/ml-decoder-lite0"))
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    if reason := why_no_gpu():
        print(f"no GPU to measure: {reason}", file=sys.stderr)
        return 2
    bundle, worst = load_bundle(given.bundle), 0.0
    print("| precision | batch | images/s | of bare sessions |")
    print("|---|---|---|---|")
    for precision in given.precision.split(","):
        measure_sizes(bundle, precision, given.seconds)
        difference = compare_scores(bundle, precision)
        print(f"\n{precision}: scores within {difference:.1e} of the CPU's\n")
        worst = max(worst, difference / _TOLERANCES[precision])
    return int(worst > 1)


if __name__ == "__main__":
    sys.exit(main())
