"""What a bundle's graphs cost on one core, without the service around them.

    python -m tests.benchmarks.model_cost [--bundle bundles/ml-decoder-lite0]

In: a bundle. Out: milliseconds an image of encoder, trained head and open head with 1,000 labels,
median and the fastest tenth, for each precision. The precisions take turns run by run, so that a
busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.bundle.manifest import GraphName
from service.bundle.reader import load_bundle
from service.engine.sessions import SessionConfig, open_session

LABELS = 1000


def main() -> None:
    """Measures as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=Path("bundles/ml-decoder-lite0"))
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    bundle = load_bundle(arguments.bundle)
    graphs: tuple[GraphName, ...] = ("encoder", "trained_head", "open_head")
    found_graphs = [graph for graph in graphs if graph in bundle.manifest.graphs]
    sessions = {
        precision: {
            graph: open_session(bundle, graph, SessionConfig("cpu", precision))
            for graph in found_graphs
        }
        for precision in bundle.precisions()
    }
    size = bundle.card.input
    stream = np.random.default_rng(0)
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(arguments.rounds):
        image = stream.integers(0, 256, (1, size.height, size.width, 3), dtype=np.uint8)
        for precision, opened in sessions.items():
            feeds: dict[str, NDArray[np.generic]] = {"images": image}
            for graph, session in opened.items():
                if graph == "open_head":
                    width = session.get_inputs()[1].shape[1]
                    feeds["queries"] = stream.normal(size=(LABELS, width)).astype(np.float32)
                names = [entry.name for entry in session.get_inputs()]
                first = [session.get_outputs()[0].name]  # without the memory, as most are served
                started = time.perf_counter()
                result = session.run(first, {name: feeds[name] for name in names})[0]
                seconds[precision, graph].append(time.perf_counter() - started)
                if graph == "encoder":
                    feeds["tokens"] = result
    print(f"{'ms an image, one core':24} {'median':>8} {'fastest tenth':>14}")
    for (precision, part), found in seconds.items():
        median, fast = (np.quantile(found, share) * 1000 for share in (0.5, 0.1))
        print(f"{precision + ' ' + part:24} {median:8.2f} {fast:14.2f}")


if __name__ == "__main__":
    main()
