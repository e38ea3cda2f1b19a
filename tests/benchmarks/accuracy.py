"""Accuracy on labelled folders: the mAP of a running service, and where attention maps point.

python -m tests.benchmarks.accuracy map --data FOLDER [--open --except FOLDER] [--calibration]
python -m tests.benchmarks.accuracy pointing --help
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image

from models.data.labelled_folder import read_labelled_folder
from models.data.records import LabelledImage
from models.metrics import average_precisions
from service.bundle.reader import load_bundle
from service.calibration import bin_scores, measure_error
from service.pipeline.pipeline import open_pipeline
from service.question import Question
from service.settings import Settings
from tests.benchmarks.servers import BUNDLE

app = typer.Typer(help=__doc__)

Map = NDArray[np.float32]
"""Values [rows, columns] over the photo."""
Box = tuple[float, float, float, float]
"""Left, top, right and bottom as shares of the photo."""


@app.command("map")
def measure_map(  # noqa: PLR0913 - a parameter for each flag
    *,
    data: Annotated[Path, typer.Option(help="Labelled folder.")],
    split: str = "test",
    url: str = "http://127.0.0.1:8000",
    open_labels: Annotated[
        bool, typer.Option("--open", help="Send the folder's names as candidate labels.")
    ] = False,
    excluded: Annotated[
        Path | None, typer.Option("--except", help="Labelled folder whose labels do not count.")
    ] = None,
    min_positives: Annotated[int, typer.Option(help="Photos of a label that counts.")] = 1,
    label_set: Annotated[str, typer.Option(help="Registered set to ask, without --open.")] = (
        "trained"
    ),
    calibration: Annotated[
        bool, typer.Option("--calibration", help="Print the reliability of scores too.")
    ] = False,
) -> None:
    """Prints the average precisions of a running service over HTTP, in percent.

    Without `--open` they are of the folder's names in a label set. Calibration is of the same
    names: the expected calibration error over ten equal bins of scores, and precision and recall of
    the labels that reach the thresholds of the answer.
    """
    folder = read_labelled_folder(data)
    others = read_labelled_folder(excluded).label_names if excluded else ()
    names, images = folder.label_names, folder.split(split)
    query: dict[str, object] = {"candidate_labels": names}
    if not open_labels:
        with urlopen(f"{url}/labels/{label_set}") as answer:
            known = {label["name"] for label in json.load(answer)["labels"]}
        names = tuple(name for name in names if name in known)
        query = {"label_set": label_set, "include": names}
    columns = [folder.label_names.index(name) for name in names]
    answers = request_scores(url, query, names, images)
    scores, thresholds = answers[..., 0], answers[..., 1]
    targets = folder.targets(images)[:, columns]
    counted = [
        column
        for column, positives in enumerate(targets.sum(axis=0).tolist())
        if names[column] not in others and positives >= min_positives
    ]
    found = average_precisions(torch.from_numpy(scores), torch.from_numpy(targets))[counted]
    for column, value in zip(counted, found.tolist(), strict=True):
        print(f"{names[column]:20} {value:6.2f}")
    print(f"{'mAP':20} {float(found.mean()):6.2f}  ({len(counted)} labels, {len(images)} photos)")
    if calibration:
        kept = [column for column, name in enumerate(names) if name not in others]
        _print_calibration(scores[:, kept], thresholds[:, kept], targets[:, kept])


def request_scores(
    url: str, query: dict[str, object], names: Sequence[str], images: Sequence[LabelledImage]
) -> NDArray[np.float64]:
    """Returns scores and thresholds of labels, float64 [n, L, 2]."""

    def request_one(image: LabelledImage) -> list[tuple[float, float]]:
        request = Request(
            f"{url}/predict?{urlencode({**query, 'top_k': len(names)}, doseq=True)}",
            data=image.path.read_bytes(),
            headers={"Content-Type": "image/jpeg"},
        )
        with urlopen(request) as answer:
            found = {label["label"]: label for label in json.load(answer)["labels"]}
        return [(found[name]["score"], found[name]["threshold"]) for name in names]

    with ThreadPoolExecutor(4) as clients:
        return np.array(list(clients.map(request_one, images)))


def _print_calibration(
    scores: NDArray[np.float64], thresholds: NDArray[np.float64], targets: NDArray[np.int64]
) -> None:
    """Prints figures of scores, their thresholds and targets [n, L]."""
    bins = bin_scores(scores, targets)
    print(f"\n{'calibration error':20} {measure_error(bins):6.4f}  ({targets.shape[1]} labels)")
    print(f"{'scores from':20} {'mean':>6} {'right':>6}")
    for number, each in enumerate(bins):
        row = f"{each.mean_score:6.3f} {each.share_right:6.3f}  ({each.scores} scores)"
        print(f"{number / len(bins):<20.1f} {row}")
    high = scores >= 0.3
    mean, right = float(scores[high].mean()), float(targets[high].mean())
    print(f"{'0.3 and more':20} {mean:6.3f} {right:6.3f}  ({int(high.sum())} scores)")
    answered = scores >= thresholds
    hits = int(targets[answered].sum())
    precision = hits / answered.sum()
    print(f"{'answered: precision':20} {precision:6.3f}  ({int(answered.sum())} labels)")
    print(f"{'answered: recall':20} {hits / targets.sum():6.3f}  ({int(targets.sum())} shown)")


@app.command()
def pointing(
    *,
    data: Annotated[Path, typer.Option(help="Labelled folder with boxes.")],
    split: str = "test",
    part: Annotated[str, typer.Option(help="all, or the first or second half.")] = "all",
    bundle: Path = BUNDLE,
) -> None:
    """Plays the pointing game: how often the peak of a label's map is in a box of that label.

    Prints hits in percent of the service's maps, and of the photo's centre, over all pairs of a
    photo and a label of it, over pairs whose boxes cover less than a quarter of the photo, and as
    the mean over labels.
    """
    pairs = _read_pairs(data, split, part)
    names = {label.name for label in load_bundle(bundle).labels}
    trained = [pair for pair in pairs if pair.label in names]
    _report("trained labels", trained, asyncio.run(_draw_served(bundle, trained, trained=True)))
    maps = asyncio.run(_draw_served(bundle, pairs, trained=False))
    _report("candidate labels", pairs, maps)
    unseen = [pair.label not in names for pair in pairs]
    others = list(compress(pairs, unseen)), list(compress(maps, unseen))
    _report("of these, not trained", *others)


@dataclass(frozen=True)
class Pair:
    photo: Path
    label: str
    boxes: tuple[Box, ...]

    def contains(self, x: float, y: float) -> bool:
        return any(left <= x <= right and top <= y <= low for left, top, right, low in self.boxes)

    def is_small(self) -> bool:
        """Whether the boxes cover less than a quarter of the photo."""
        places = (np.arange(50) + 0.5) / 50
        return float(np.mean([self.contains(x, y) for x in places for y in places])) < 0.25


def _read_pairs(folder: Path, split: str, part: str) -> list[Pair]:
    images = json.loads((folder / "labels.json").read_text())["images"]
    files = sorted(name for name, entry in images.items() if entry["split"] == split)
    first = np.arange(len(files)) < len(files) // 2
    np.random.RandomState(1).shuffle(first)
    return [
        Pair(folder / "images" / file, label, tuple(tuple(box) for box in boxes))
        for file, is_first in zip(files, first, strict=True)
        for label, boxes in images[file].get("boxes", {}).items()
        if boxes and (part == "all" or is_first == (part == "first"))
    ]


async def _draw_served(bundle: Path, pairs: list[Pair], *, trained: bool) -> list[Map]:
    """Returns the maps that the service makes, of trained or of candidate labels."""
    settings = Settings(bundle=bundle, device="cpu", label_store="memory", deadline_ms=600_000)
    pipeline = open_pipeline(settings)
    await pipeline.start()
    found: dict[tuple[Path, str], Map] = {}
    for photo in dict.fromkeys(pair.photo for pair in pairs):
        names = tuple(pair.label for pair in pairs if pair.photo == photo)
        labels = {"include": names, "label_set": ("trained",)}
        labels = labels if trained else {"candidate_labels": names}
        question = Question(top_k=len(names), explain=True, **labels)  # type: ignore[arg-type]
        selection = await pipeline.select(question)
        prediction = await pipeline.predict(photo.read_bytes(), selection)
        for label, explanation in zip(prediction.labels, prediction.explanations, strict=True):
            found[photo, label.label] = explanation.map
    await pipeline.drain()
    return [found[pair.photo, pair.label] for pair in pairs]


def _report(title: str, pairs: list[Pair], maps: list[Map]) -> None:
    small = [pair.is_small() for pair in pairs]
    print(f"\n{title + f', {len(pairs)} pairs':36} {'all':>6} {'small':>6} {'by label':>9}")
    for name, peaks in (("centre", [(0.5, 0.5)] * len(maps)), ("maps", map(_find_peak, maps))):
        hits = [pair.contains(*peak) for pair, peak in zip(pairs, peaks, strict=True)]
        of_label = defaultdict[str, list[bool]](list)
        for pair, hit in zip(pairs, hits, strict=True):
            of_label[pair.label].append(hit)
        means = (hits, list(compress(hits, small)), [np.mean(found) for found in of_label.values()])
        every, of_small, by_label = (100 * float(np.mean(found)) for found in means)
        print(f"{name:36} {every:6.1f} {of_small:6.1f} {by_label:9.1f}", flush=True)


def _find_peak(cells: Map) -> tuple[float, float]:
    """Returns x and y of the largest value of the map, enlarged 8 times, in shares of the photo."""
    rows, columns = (8 * size for size in cells.shape)
    large = np.asarray(Image.fromarray(cells).resize((columns, rows), Image.Resampling.BICUBIC))
    row, column = np.unravel_index(large.argmax(), large.shape)
    return (float(column) + 0.5) / columns, (float(row) + 0.5) / rows


if __name__ == "__main__":
    app()
