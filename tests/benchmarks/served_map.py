"""The accuracy of a running service, from photo files over HTTP to mAP.

    python -m tests.benchmarks.served_map --data FOLDER [--url http://127.0.0.1:8000]
    python -m tests.benchmarks.served_map --data FOLDER --open --except FOLDER

In: a service and a labelled folder; with `--open` its names are asked for as candidate labels,
else the service has to know them. Out: the average precision of each label and their mean, in
percent.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import torch

from models.data import LabelledFolder, LabelledImage, read_labelled_folder
from models.metrics import average_precisions

CLIENTS = 4


def main() -> None:
    """Measures as the command line says."""
    arguments = _parser().parse_args()
    folder = read_labelled_folder(arguments.data)
    images = folder.split(arguments.split)
    asked: dict[str, object] = {"top_k": len(folder.label_names)}
    if arguments.open:
        asked["candidate_labels"] = folder.label_names
    url = f"{arguments.url}/predict?{urlencode(asked, doseq=True)}"

    def ask(image: LabelledImage) -> list[float]:
        scores = request_scores(url, image.path.read_bytes())
        return [scores[name] for name in folder.label_names]

    with ThreadPoolExecutor(CLIENTS) as clients:
        scores = torch.tensor(list(clients.map(ask, images)), dtype=torch.float64)
    targets = torch.from_numpy(folder.targets(images))
    counted = choose_labels(folder, targets, arguments.excluded, arguments.min_positives)
    found = average_precisions(scores, targets)[counted]
    for column, value in zip(counted, found.tolist(), strict=True):
        print(f"{folder.label_names[column]:20} {value:6.2f}")
    print(f"{'mAP':20} {float(found.mean()):6.2f}  ({len(counted)} labels, {len(images)} photos)")


def choose_labels(
    folder: LabelledFolder, targets: torch.Tensor, excluded: Path | None, min_positives: int
) -> list[int]:
    """Returns the columns of the labels that count.

    Args:
        folder: the labels.
        targets: 0/1 [n, N] of the photos.
        excluded: a labelled folder whose labels do not count.
        min_positives: fewest photos with a label that counts.
    """
    others = read_labelled_folder(excluded).label_names if excluded else ()
    return [
        column
        for column, (name, positives) in enumerate(
            zip(folder.label_names, targets.sum(dim=0).tolist(), strict=True)
        )
        if name not in others and positives >= min_positives
    ]


def request_scores(url: str, photo: bytes) -> dict[str, float]:
    """Returns the score (0..1) of every label that is asked for, on one photo."""
    request = Request(url, data=photo, headers={"Content-Type": "image/jpeg"})
    with urlopen(request) as answer:
        return {label["label"]: label["score"] for label in json.load(answer)["labels"]}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="labelled folder")
    add("--split", default="test")
    add("--url", default="http://127.0.0.1:8000")
    add("--open", action="store_true", help="ask for the folder's names as candidate labels")
    add("--except", dest="excluded", type=Path, help="labelled folder whose labels do not count")
    add("--min-positives", type=int, default=1, help="fewest photos with a label that counts")
    return parser


if __name__ == "__main__":
    main()
