"""What `explain` costs a request, on and off.

    python -m tests.benchmarks.explain_cost --bundle BUNDLE --data FOLDER [--without BUNDLE]

Prints the median processor time of a request, from the photo's bytes to the JSON of its answer,
relative to one without maps; `no maps` is the same model exported without maps (`--without`). The
kinds of requests take turns photo by photo: read the ratios only.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from service.http.responses.prediction_json import write_prediction
from service.labels.question import Question
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.settings import Settings
from tests.benchmarks.servers import BUNDLE

SETS: dict[str, tuple[str, ...]] = {
    "trained": ("trained",),
    "everyday": ("everyday",),
    "both": ("trained", "everyday"),
}
WARM_UP = 5


def main(
    *,
    data: Annotated[Path, typer.Option(help="Folder with images/.")],
    bundle: Path = BUNDLE,
    without: Annotated[Path | None, typer.Option(help="The same model without maps.")] = None,
    photos: int = 200,
) -> None:
    """Measures what maps cost."""
    paths = sorted((data / "images").iterdir())[:photos]
    asyncio.run(_measure([path.read_bytes() for path in paths], [bundle, without or bundle]))


async def _measure(photos: list[bytes], bundles: list[Path]) -> None:
    settings = {"device": "cpu", "label_store": "memory", "deadline_ms": 600_000}
    mapped, plain = (open_pipeline(Settings(bundle=path, **settings)) for path in bundles)  # type: ignore[arg-type]
    for pipeline in (mapped, plain):
        await pipeline.start()
    heads = ("answered", "off", "true", "overlay", "no maps")
    print(f"{'label set':12} " + " ".join(f"{head:>8}" for head in heads))
    for name, label_set in SETS.items():
        for top_k in (1, 3, 10):
            off = Question(top_k=top_k, label_set=label_set)
            kinds = [
                (mapped, off),
                (mapped, Question(top_k=top_k, label_set=label_set, explain=True)),
                (mapped, Question(top_k=top_k, label_set=label_set, explain="overlay")),
                (plain, off),
            ]
            medians = np.median(await _take_turns(kinds, photos), axis=0)
            row = " ".join(f"{ratio:8.3f}" for ratio in medians / medians[0])
            print(f"{name:12} {top_k:8} {row}", flush=True)
    for pipeline in (mapped, plain):
        await pipeline.drain()


async def _take_turns(
    kinds: list[tuple[Pipeline, Question]], photos: list[bytes]
) -> list[list[float]]:
    """Returns the processor seconds of each photo and kind; the first kind changes each time."""
    seconds = [[0.0] * len(kinds) for _ in photos]
    for number, photo in enumerate(photos):
        for turn in range(len(kinds)):
            kind = (number + turn) % len(kinds)
            pipeline, question = kinds[kind]
            started = time.process_time()
            selection = await pipeline.select(question)
            prediction = await pipeline.predict(photo, selection)
            write_prediction(pipeline, selection, prediction, "explained")
            seconds[number][kind] = time.process_time() - started
    return seconds[WARM_UP:]


if __name__ == "__main__":
    typer.run(main)
