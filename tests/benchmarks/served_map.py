"""The accuracy of a running service, from photo files over HTTP to mAP.

    python -m tests.benchmarks.served_map --data FOLDER [--url http://127.0.0.1:8000]
    python -m tests.benchmarks.served_map --data FOLDER --open --except FOLDER

Prints the average precision of each label of the folder and their mean, in percent. Without
`--open` the service has to know the labels.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import torch
import typer

from models.data import LabelledImage, read_labelled_folder
from models.metrics import average_precisions

CLIENTS = 4


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
) -> None:
    """Measures the mAP of a running service."""
    folder = read_labelled_folder(data)
    names, images = folder.label_names, folder.split(split)
    query: dict[str, object] = {"top_k": len(names)}
    if open_labels:
        query["candidate_labels"] = names

    def request_scores(image: LabelledImage) -> list[float]:
        request = Request(
            f"{url}/predict?{urlencode(query, doseq=True)}",
            data=image.path.read_bytes(),
            headers={"Content-Type": "image/jpeg"},
        )
        with urlopen(request) as answer:
            scores = {label["label"]: label["score"] for label in json.load(answer)["labels"]}
        return [scores[name] for name in names]

    with ThreadPoolExecutor(CLIENTS) as clients:
        scores = torch.tensor(list(clients.map(request_scores, images)), dtype=torch.float64)
    targets = torch.from_numpy(folder.targets(images))
    others = read_labelled_folder(excluded).label_names if excluded else ()
    counted = [
        column
        for column, positives in enumerate(targets.sum(dim=0).tolist())
        if names[column] not in others and positives >= min_positives
    ]
    found = average_precisions(scores, targets)[counted]
    for column, value in zip(counted, found.tolist(), strict=True):
        print(f"{names[column]:20} {value:6.2f}")
    print(f"{'mAP':20} {float(found.mean()):6.2f}  ({len(counted)} labels, {len(images)} photos)")


if __name__ == "__main__":
    typer.run(main)
