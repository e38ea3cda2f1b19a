"""Compares our engine on a GPU with bare sessions there, and its scores with the CPU's.

    python -m tests.benchmarks.gpu [--bundle BUNDLE] [--precision fp32,fp16]

Prints images per second at each batch size, and for sizes that change with every run, relative to a
bare loop over the same sessions, whose copies go through the CPU's memory; and the largest
difference to the CPU's scores. Exits with 1 if that is too large, with 2 without a GPU.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import typer

from service.bundle.card import Precision
from service.bundle.reader import Bundle, load_bundle
from service.engine.engine import Engine, open_engine
from service.engine.sessions import SessionConfig, open_session
from service.images.decode import PixelArray
from service.pipeline.scoring import compute_scores
from tests.benchmarks.load import median_seconds
from tests.benchmarks.servers import BUNDLE
from tests.support.engines import why_no_gpu

_TOLERANCES: dict[Precision, float] = {"fp32": 1e-3, "fp16": 2e-2, "int8": 5e-2}
_SIZES = (1, 2, 4, 8, 16, 32)
_CHANGING = (1, 4, 2, 8)


def measure_sizes(bundle: Bundle, precision: Precision, seconds: float) -> None:
    engine = open_on_gpu(bundle, precision, max_batch_size=max(_SIZES))
    config, images = SessionConfig("cuda", precision), make_images(bundle, max(_SIZES))
    encoder, head = (open_session(bundle, name, config) for name in ("encoder", "trained_head"))

    def run_ours(sizes: Sequence[int]) -> None:
        for size in sizes:
            engine.run(images[:size], [[None]] * size)

    def run_bare(sizes: Sequence[int]) -> None:
        for size in sizes:
            (tokens,) = encoder.run(["tokens"], {"images": images[:size]})
            head.run(["logits"], {"tokens": tokens})

    for sizes in (*((size,) for size in _SIZES), _CHANGING):
        bare = median_seconds(partial(run_bare, sizes), seconds)
        ours = median_seconds(partial(run_ours, sizes), seconds)
        batch = " ".join(map(str, sizes))
        rate = sum(sizes) / ours
        print(f"| {precision} | {batch} | {rate:.0f} | {bare / ours:.2f} |", flush=True)


def open_on_gpu(bundle: Bundle, precision: Precision, max_batch_size: int = 0) -> Engine:
    engine = open_engine(bundle, device="cuda", precision=precision, max_batch_size=max_batch_size)
    engine.warm_up()
    return engine


def make_images(bundle: Bundle, size: int) -> PixelArray:
    contract = bundle.card.input
    shape = (size, contract.height, contract.width, 3)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def compare_scores(bundle: Bundle, precision: Precision) -> float:
    """Returns the largest difference of a score between GPU and CPU in fp32."""
    images = make_images(bundle, 4)
    cpu = open_engine(bundle, device="cpu", precision="fp32")
    ours, theirs = (
        compute_scores(np.stack([x for (x,), *_ in engine.run(images, [[None]] * 4)]), "sigmoid")
        for engine in (open_on_gpu(bundle, precision), cpu)
    )
    return float(np.abs(ours - theirs).max())


def main(*, bundle: Path = BUNDLE, precision: str = "fp32", seconds: float = 2.0) -> None:
    """Measures the engine on a GPU."""
    if reason := why_no_gpu():
        print(f"no GPU to measure: {reason}", file=sys.stderr)
        raise typer.Exit(2)
    opened, worst = load_bundle(bundle), 0.0
    print("| precision | batch | images/s | of bare sessions |\n|---|---|---|---|")
    for each in precision.split(","):
        measure_sizes(opened, each, seconds)  # type: ignore[arg-type]
        difference = compare_scores(opened, each)  # type: ignore[arg-type]
        print(f"\n{each}: scores within {difference:.1e} of the CPU's\n")
        worst = max(worst, difference / _TOLERANCES[each])  # type: ignore[index]
    raise typer.Exit(int(worst > 1))


if __name__ == "__main__":
    typer.run(main)
