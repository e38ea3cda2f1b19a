"""The limit: what one process can do with a bundle and a photo when nothing serves it.

    python -m tests.benchmarks.limit --bundle BUNDLE [--precision openvino:bf16] [--seconds 4]

In: a bundle and a photo. Out: images a second, as JSON on stdout: `loaded`, with every core
decoding and running batches of the best size, and `lone`, one photo at a time (decode, then a run
on every core). No HTTP, no queue, no labels: `serving.py` holds the service against it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from service.bundle.reader import load_bundle
from service.engine.engine import open_engine
from service.images.decode import decode_image
from service.scheduling.cpu import count_cores
from service.settings import Settings
from tests.benchmarks.servers import split_place

_BATCH_SIZES = (1, 2, 4, 8)
_LOOKS, _LOOK_SECONDS = 3, 1.0


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


class Limit:
    """One bundle and one photo in this process.

    Attributes:
        batch_size: the best, by a first look; rates are measured anew, since the largest of
            several noisy figures is larger than any of them deserves.
    """

    def __init__(self, bundle: Path, place: str, photo: bytes) -> None:
        """Opens the bundle at a `split_place` and looks for the best batch size."""
        device, precision = split_place(place)
        opened, self._photo = load_bundle(bundle), photo
        self._cores, self._max_pixels = count_cores(), Settings().max_pixels
        self._contract = opened.card.input
        self._engine = open_engine(opened, device=device, precision=precision, threads=self._cores)  # type: ignore[arg-type]
        looks: dict[int, list[float]] = {size: [] for size in _BATCH_SIZES}
        for _ in range(_LOOKS):
            for size in looks:
                looks[size].append(self._measure_loaded(size, _LOOK_SECONDS))
        self.batch_size = max(looks, key=lambda size: statistics.median(looks[size]))

    def measure(self, seconds: float, *, lone: bool = False) -> float:
        """Returns images a second: of all cores with full batches, or of one photo at a time."""
        if lone:
            return count_a_second(lambda: self._run(1, alone=True), 1, seconds)
        return self._measure_loaded(self.batch_size, seconds)

    def _measure_loaded(self, size: int, seconds: float) -> float:
        return size * count_a_second(lambda: self._run(size), self._cores, seconds)

    def _run(self, size: int, *, alone: bool = False) -> None:
        decoded = (decode_image(self._photo, self._contract, self._max_pixels) for _ in range(size))
        self._engine.run(np.stack([d.pixels for d in decoded]), [[None]] * size, alone=alone)


def main() -> None:
    """Measures as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=Path("bundles/ml-decoder-lite0"))
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--photo", type=Path, default=Path("docs/photos/chelsea.jpg"))
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    limit = Limit(given.bundle, given.precision, given.photo.read_bytes())
    found = {
        "loaded": limit.measure(given.seconds),
        "batch": limit.batch_size,
        "lone": limit.measure(given.seconds, lone=True),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
