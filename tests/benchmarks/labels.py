"""The rate of requests by the number of registered labels.

    python -m tests.benchmarks.labels --bundle BUNDLE

Labels are WordNet's nouns from timm, and beyond those pairs of them: what a screen leaves out
depends on how near labels are to each other. `--names` is a text file of others, one a line;
`--no-screen` turns the screen off. Rates are of many parallel requests for the 10 best labels, in
turns, relative to one label's in the same turn.
"""

import asyncio
import time
from itertools import islice, product
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from export.calibration.screen import read_nouns
from service.bundle.reader import load_bundle
from service.labels.definition import LabelSetRecord
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.question import Question
from service.settings import Settings
from tests.support.photos import make_photo

SIZES = (1, 1_000, 10_000, 50_000)
CLIENTS = 16


def list_names(count: int, file: Path | None) -> list[str]:
    nouns = file.read_text().splitlines() if file else read_nouns()
    return [*nouns, *(f"{a} {b}" for a, b in islice(product(nouns, nouns[7:]), count))][:count]


async def register(pipeline: Pipeline, names: list[str]) -> str:
    record = LabelSetRecord.model_validate({"name": f"labels-{len(names)}", "labels": names})
    await pipeline.catalogue.writable(record.name).register(record.define())
    return record.name


async def compare_rates(settings: Settings, names: list[str], rounds: int, seconds: float) -> None:
    pipeline = open_pipeline(settings)
    await pipeline.start()
    sets = [await register(pipeline, names[:size]) for size in SIZES]
    rates = np.array(
        [[await measure_rate(pipeline, name, seconds) for name in sets] for _ in range(rounds)]
    )
    await pipeline.drain()
    print("| labels | photos/s | relative to one label (quartiles) |\n|---|---|---|")
    for size, rate, share in zip(SIZES, rates.T, (rates / rates[:, :1]).T, strict=True):
        low, middle, high = np.percentile(share, [25, 50, 75])
        print(f"| {size:,} | {np.median(rate):.1f} | {middle:.3f} ({low:.3f}-{high:.3f}) |")


async def measure_rate(pipeline: Pipeline, name: str, seconds: float) -> float:
    selection = await pipeline.select(Question(label_set=(name,), top_k=10))
    photo = make_photo(0)
    started = time.perf_counter()

    async def ask() -> int:
        answers = 0
        while time.perf_counter() < started + seconds:
            await pipeline.predict(photo, selection)
            answers += 1
        return answers

    answers = sum(await asyncio.gather(*(ask() for _ in range(CLIENTS))))
    return answers / (time.perf_counter() - started)


def main(
    *,
    bundle: Annotated[Path, typer.Option()],
    names: Annotated[Path | None, typer.Option(help="A name a line.")] = None,
    screen: bool = True,
    rounds: int = 10,
    seconds: float = 3.0,
) -> None:
    """Measures requests by the number of labels."""
    settings = Settings(bundle=bundle, device="cpu", label_store="memory", screen=screen)
    card = load_bundle(bundle).card
    print(f"{card.name} {card.version}, screen {'on' if screen else 'off'}\n", flush=True)
    asyncio.run(compare_rates(settings, list_names(max(SIZES), names), rounds, seconds))


if __name__ == "__main__":
    typer.run(main)
