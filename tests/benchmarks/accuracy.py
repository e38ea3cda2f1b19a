"""The mAP of a running service on labelled folders.

python -m tests.benchmarks.accuracy --data FOLDER [--open --except FOLDER] [--calibration]
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from models.data.labelled_folder import read_labelled_folder
from models.data.records import LabelledImage
from models.metrics import average_precisions
from service.calibration import bin_scores, measure_error


def main(  # noqa: PLR0913 - a parameter for each flag
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
    precisions = average_precisions(torch.from_numpy(scores), torch.from_numpy(targets))[counted]
    for column, value in zip(counted, precisions.tolist(), strict=True):
        print(f"{names[column]:20} {value:6.2f}")
    mean = float(precisions.mean())
    print(f"{'mAP':20} {mean:6.2f}  ({len(counted)} labels, {len(images)} photos)")
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
            labels = {label["label"]: label for label in json.load(answer)["labels"]}
        return [(labels[name]["score"], labels[name]["threshold"]) for name in names]

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


if __name__ == "__main__":
    typer.run(main)
