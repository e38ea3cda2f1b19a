"""What `explain` costs a request, on and off.

    python -m tests.benchmarks.explain_cost --bundle BUNDLE --data FOLDER [--without BUNDLE]

In: a bundle with maps, photos, and the same model exported without maps. Out: the median processor
time of a request, all threads together, from the photo's bytes to the JSON of its answer, against
one that asks for no maps; and what an unexplained request costs with the second bundle against the
first. The kinds of requests take turns photo by photo: read the ratios only.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from service.http.responses.prediction_json import write_prediction
from service.labels.question import Question
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.settings import Settings

SETS: dict[str, tuple[str, ...]] = {
    "trained": ("trained",),
    "everyday": ("everyday",),
    "both": ("trained", "everyday"),
}
WARM_UP = 5


async def ask(pipeline: Pipeline, photo: bytes, question: Question) -> float:
    """Returns the processor seconds of one request; other work hardly changes them."""
    started = time.process_time()
    selection = await pipeline.select(question)
    write_prediction(pipeline, selection, await pipeline.predict(photo, selection), "explained")
    return time.process_time() - started


async def measure(arguments: argparse.Namespace) -> None:
    """Prints the tables."""
    photos = [path.read_bytes() for path in sorted((arguments.data / "images").iterdir())]
    photos = photos[: arguments.photos]
    bundles = {"with": arguments.bundle} | (
        {"without": arguments.without} if arguments.without else {}
    )
    pipelines = {
        name: open_pipeline(
            Settings(bundle=path, device="cpu", label_store="memory", deadline_ms=600_000)
        )
        for name, path in bundles.items()
    }
    for pipeline in pipelines.values():
        await pipeline.start()
    heads = ("answered", "off", "true", "overlay", "no maps")
    print(f"{'label set':12} " + " ".join(f"{head:>8}" for head in heads))
    for name, label_set in SETS.items():
        for top_k in (1, 3, 10):
            off = Question(top_k=top_k, label_set=label_set)
            kinds = {
                "off": (pipelines["with"], off),
                "map": (
                    pipelines["with"],
                    Question(top_k=top_k, label_set=label_set, explain=True),
                ),
                "overlay": (
                    pipelines["with"],
                    Question(top_k=top_k, label_set=label_set, explain="overlay"),
                ),
            }
            if "without" in pipelines:
                kinds["without"] = (pipelines["without"], off)
            seconds = await take_turns(kinds, photos)
            base = float(np.median(seconds["off"]))
            ratios = {kind: float(np.median(found)) / base for kind, found in seconds.items()}
            row = " ".join(f"{ratios[kind]:8.3f}" for kind in ("off", "map", "overlay"))
            without = f"{ratios['without']:8.3f}" if "without" in ratios else ""
            print(f"{name:12} {top_k:8} {row} {without}", flush=True)
    for pipeline in pipelines.values():
        await pipeline.drain()


async def take_turns(
    kinds: dict[str, tuple[Pipeline, Question]], photos: list[bytes]
) -> dict[str, list[float]]:
    """Asks about every photo in every way; whose turn is first changes from photo to photo."""
    seconds: dict[str, list[float]] = defaultdict(list)
    order = list(kinds)
    for i, photo in enumerate(photos):
        order.append(order.pop(0))
        for kind in order:
            spent = await ask(kinds[kind][0], photo, kinds[kind][1])
            if i >= WARM_UP:
                seconds[kind].append(spent)
    return seconds


def main() -> None:
    """Measures as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=Path("bundles/ml-decoder-lite0"))
    parser.add_argument("--without", type=Path, help="the same model without maps")
    parser.add_argument("--data", type=Path, required=True, help="folder with images/")
    parser.add_argument("--photos", type=int, default=200)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
