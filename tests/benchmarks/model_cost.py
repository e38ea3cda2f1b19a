"""What a bundle's graphs cost on one core, without the service around them.

    python -m tests.benchmarks.model_cost [--bundle bundles/ml-decoder-lite0]

Prints milliseconds per image of encoder, trained head and open head with 1,000 labels, median and
fastest tenth. The precisions take turns run by run, so that a busy machine slows all alike.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import typer
from numpy.typing import NDArray

from service.bundle.manifest import GraphName
from service.bundle.reader import load_bundle
from service.engine.sessions import SessionConfig, open_session
from tests.benchmarks.servers import BUNDLE

LABELS = 1000
GRAPHS: tuple[GraphName, ...] = ("encoder", "trained_head", "open_head")


def main(*, bundle: Path = BUNDLE, rounds: int = 100) -> None:
    """Measures the graphs of a bundle."""
    opened = load_bundle(bundle)
    sessions = {
        precision: {
            graph: open_session(opened, graph, SessionConfig("cpu", precision))
            for graph in GRAPHS
            if graph in opened.manifest.graphs
        }
        for precision in opened.precisions()
    }
    size, random = opened.card.input, np.random.default_rng(0)
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        image = random.integers(0, 256, (1, size.height, size.width, 3), dtype=np.uint8)
        for precision, graphs in sessions.items():
            feeds: dict[str, NDArray[np.generic]] = {"images": image}
            for graph, session in graphs.items():
                if graph == "open_head":
                    width = session.get_inputs()[1].shape[1]
                    feeds["queries"] = random.normal(size=(LABELS, width)).astype(np.float32)
                inputs = {entry.name: feeds[entry.name] for entry in session.get_inputs()}
                first = [session.get_outputs()[0].name]  # without the memory, like most requests
                started = time.perf_counter()
                (result,) = session.run(first, inputs)
                seconds[precision, graph].append(time.perf_counter() - started)
                if graph == "encoder":
                    feeds["tokens"] = result
    print(f"{'ms an image, one core':24} {'median':>8} {'fastest tenth':>14}")
    for (precision, part), found in seconds.items():
        median, fast = (np.quantile(found, share) * 1000 for share in (0.5, 0.1))
        print(f"{precision + ' ' + part:24} {median:8.2f} {fast:14.2f}")


if __name__ == "__main__":
    typer.run(main)
