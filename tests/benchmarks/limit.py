"""The limit: what one process can do with a bundle and a photo when nothing serves it.

    python -m tests.benchmarks.limit --bundle BUNDLE [--precision fp32] [--seconds 4]

In: a bundle and a photo. Out: images a second, as JSON on stdout: `loaded`, with every core
decoding and running batches of the best size, and `lone`, one photo at a time (decode, then a run
on every core). No HTTP, no queue, no labels: `serving.py` holds the service against it.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from service.bundle import load_bundle
from service.engine import Engine, open_engine
from service.images import decode_image
from service.settings import Settings, count_cores

_BATCH_SIZES = (1, 2, 4, 8)


def count_a_second(work: Callable[[], object], threads: int, seconds: float) -> float:
    """Returns how often `work` is done a second by this many threads."""
    work()
    started = time.perf_counter()
    counts = [0] * threads

    def loop(index: int) -> None:
        while time.perf_counter() < started + seconds:
            work()
            counts[index] += 1

    running = [threading.Thread(target=loop, args=(index,)) for index in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)


def measure_limit(engine: Engine, bundle: Path, photo: bytes, seconds: float) -> dict[str, float]:
    """Returns images a second, `loaded` and `lone`, and the batch size of the former."""
    contract, max_pixels = load_bundle(bundle).card.input, Settings().max_pixels

    def run(size: int, *, alone: bool = False) -> None:
        images = [decode_image(photo, contract, max_pixels).pixels for _ in range(size)]
        engine.run(np.stack(images), [[None]] * size, alone=alone)

    cores = count_cores()
    rates = {n: n * count_a_second(lambda n=n: run(n), cores, seconds) for n in _BATCH_SIZES}  # type: ignore[misc]
    best = max(rates, key=lambda size: rates[size])
    lone = count_a_second(lambda: run(1, alone=True), 1, seconds)
    return {"loaded": rates[best], "batch": best, "lone": lone}


def main() -> None:
    """Measures as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=Path("bundles/ml-decoder-lite0"))
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--photo", type=Path, default=Path("docs/photos/chelsea.jpg"))
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    engine = open_engine(
        load_bundle(given.bundle), device="cpu", precision=given.precision, threads=count_cores()
    )
    found = measure_limit(engine, given.bundle, given.photo.read_bytes(), given.seconds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
