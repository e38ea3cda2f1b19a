"""The accuracy of a running service, from photo files over HTTP to mAP.

    python -m tests.benchmarks.served_map --data FOLDER [--url http://127.0.0.1:8000]

In: a service and a labelled folder with the labels that the service was trained on. Out: the
average precision of each label and their mean, in percent.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import torch

from models.data import LabelledImage, read_labelled_folder
from models.metrics import average_precisions

CLIENTS = 4


def main() -> None:
    """Measures as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="labelled folder")
    parser.add_argument("--split", default="test")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    arguments = parser.parse_args()
    folder = read_labelled_folder(arguments.data)
    images = folder.split(arguments.split)

    def ask(image: LabelledImage) -> list[float]:
        scores = request_scores(arguments.url, image.path.read_bytes())
        return [scores[name] for name in folder.label_names]

    with ThreadPoolExecutor(CLIENTS) as clients:
        scores = torch.tensor(list(clients.map(ask, images)), dtype=torch.float64)
    found = average_precisions(scores, torch.from_numpy(folder.targets(images)))
    for name, value in zip(folder.label_names, found.tolist(), strict=True):
        print(f"{name:20} {value:6.2f}")
    print(f"{'mAP':20} {float(found.nanmean()):6.2f}  ({len(images)} photos, served)")


def request_scores(url: str, photo: bytes) -> dict[str, float]:
    """Returns the score (0..1) of every label of one photo."""
    request = Request(
        f"{url}/predict?{urlencode({'threshold': 0})}",
        data=photo,
        headers={"Content-Type": "image/jpeg"},
    )
    with urlopen(request) as answer:
        return {label["label"]: label["score"] for label in json.load(answer)["labels"]}


if __name__ == "__main__":
    main()
