"""Compares answers with a bundle's screen and without it, on labelled photos.

    python -m tests.benchmarks.screen --bundle BUNDLE --photos FOLDER [--names FILE] [--images N]

For each label set of the bundle, and for a text file of names, one a line (default: WordNet's nouns
from timm): the share of the labels of the full answer that the screened one has, the largest
difference of their scores, and mAP over labels of the photos if the set has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from export.calibration.screen import read_nouns
from models.data import read_labelled_folder
from models.metrics import mean_average_precision
from service.bundle.reader import load_bundle
from service.engine.engine import Engine
from service.images.decode import PixelArray, decode_image
from service.images.folders import read_photo
from service.labels.definition import LabelSetRecord, define_label_set
from service.labels.label_set import LabelSet
from service.pipeline.pipeline import open_pipeline
from service.pipeline.scoring import score_labels
from service.pipeline.selection import select_labels
from service.question import Question
from service.settings import Settings

_MAX_PIXELS = 200_000_000
_QUESTIONS = {
    "20 best": Question(top_k=20),
    "above thresholds": Question(),
    "100 best": Question(top_k=100),
}


def answer(
    engine: Engine, labels: LabelSet, question: Question, photos: Sequence[PixelArray]
) -> list[dict[str, float]]:
    selection = select_labels([labels], question)
    found = [engine.run(photo[np.newaxis], [selection.heads])[0].logits for photo in photos]
    return [
        {label.label: label.score for label in score_labels(logits, selection)} for logits in found
    ]


async def make_sets(settings: Settings, names: Sequence[str]) -> tuple[Engine, list[LabelSet]]:
    """Returns the engine, the bundle's sets and one of the names."""
    pipeline = open_pipeline(settings)
    await pipeline.start()
    sets = [labels for labels in pipeline.catalogue.list_sets() if labels.keys is not None]
    record = LabelSetRecord.model_validate({"name": "names", "labels": list(names)})
    registered, _ = await pipeline.catalogue.writable(record.name).register(
        define_label_set(record)
    )
    await pipeline.drain()
    return pipeline.engine, [*sets, registered]


def main(
    *,
    bundle: Annotated[Path, typer.Option()],
    photos: Annotated[Path, typer.Option(help="A labelled folder.")],
    split: str = "test",
    names: Annotated[Path | None, typer.Option(help="A name a line.")] = None,
    images: int = 400,
) -> None:
    """Compares answers with a screen and without."""
    settings = Settings(bundle=bundle, device="cpu", label_store="memory")
    nouns = names.read_text().splitlines() if names else read_nouns()
    engine, sets = asyncio.run(make_sets(settings, nouns))
    folder = read_labelled_folder(photos)
    chosen = folder.split(split)[:images]
    contract, targets = load_bundle(bundle).card.input, folder.targets(chosen)
    pixels = [decode_image(read_photo(i.path), contract, _MAX_PIXELS).pixels for i in chosen]
    print("| set | labels | answer | found of the full answer | largest difference | mAP, full |")
    print("|---|---|---|---|---|---|")
    for labels in sets:
        known = [i for i, name in enumerate(folder.label_names) if name in labels.positions]
        for title, question in _QUESTIONS.items():
            screened, full = (
                answer(engine, each, question, pixels)
                for each in (labels, replace(labels, keys=None))
            )
            pairs = list(zip(screened, full, strict=True))
            wanted = sum(map(len, full))
            found = sum(len(one.keys() & other.keys()) for one, other in pairs)
            worst = max(
                abs(one[name] - other[name]) for one, other in pairs for name in one.keys() & other
            )
            maps = ""
            if question.top_k == 100 and known:
                rows, own = [folder.label_names[i] for i in known], torch.tensor(targets[:, known])
                maps = ", ".join(  # labels that are missing in an answer score 0
                    f"{mean_average_precision(torch.tensor(scores), own):.2f}"
                    for answers in (screened, full)
                    for scores in [[[found.get(name, 0.0) for name in rows] for found in answers]]
                )
            print(f"| {labels.name} | {len(labels.names):,} | {title} "
                  f"| {100 * found / max(wanted, 1):.3f} % of {wanted:,} | {worst:.1e} | {maps} |",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
