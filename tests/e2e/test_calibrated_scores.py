"""Every interface answers with sigmoid(scale * logit + shift) of a calibrated bundle."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from service.bundle.card import write_prompt
from service.bundle.reader import Bundle
from service.cli.bulk.run import BulkJob, run_bulk
from service.images.decode import decode_image
from service.labels.encoders import open_text_encoder
from service.question import Question
from service.settings import Settings
from tests.e2e.server_process import ROOT
from tests.support.photos import make_photo
from tests.support.serving import labels_of, send_image, send_images, serve_app, to_base64
from tests.support.tiny_bundle import run_bundle, write_calibrated_bundle

Scores = list[dict[str, float]]
"""For each photo, label -> score."""

# Scale and shift of each label: `dog` has its own, and `cat` of `everyday` is a trained name.
PAIRS = {
    "trained": dict.fromkeys(("cat", "dog", "car", "tree", "person"), (2.0, -0.5))
    | {"dog": (1.5, 0.25)},
    "everyday": {"chair": (0.5, -1.0), "cat": (0.75, 1.0), "lamp": (0.5, -1.0)},
}
PHOTOS = [make_photo(seed) for seed in range(3)]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_calibrated_bundle(tmp_path_factory.mktemp("calibrated"))


def decode_photos(bundle: Bundle) -> NDArray[np.uint8]:
    return np.stack([decode_image(p, bundle.card.input, 10**6).pixels for p in PHOTOS])


def compute_expected(bundle: Bundle, label_set: str) -> Scores:
    names, embeddings = list(PAIRS[label_set]), None
    if label_set != "trained":
        texts = open_text_encoder(bundle, threads=1)
        assert texts is not None
        embeddings = texts.encode([write_prompt("a {}", name) for name in names])
    logits = run_bundle(bundle, decode_photos(bundle), embeddings).astype(np.float64)
    scales, shifts = np.array(list(PAIRS[label_set].values())).T
    scores = 1 / (1 + np.exp(-(scales * logits + shifts)))
    return [dict(zip(names, row, strict=True)) for row in scores.tolist()]


def ask_predict(bundle: Bundle, label_set: str, _: Path) -> Scores:
    return predict(bundle, label_set=label_set)


def predict(bundle: Bundle, **asked: Any) -> Scores:
    with serve_app(bundle.path) as client:
        answers = [send_image(client, p, params={**asked, "threshold": 0}) for p in PHOTOS]
    return [dict(labels_of(answer)) for answer in answers]


def ask_batch(bundle: Bundle, label_set: str, _: Path) -> Scores:
    with serve_app(bundle.path) as client:
        asked = {"label_set": label_set, "threshold": 0}
        results = send_images(client, PHOTOS, params=asked).json()["results"]
    return [{label["label"]: label["score"] for label in each["labels"]} for each in results]


def ask_open_inference(bundle: Bundle, label_set: str, _: Path) -> Scores:
    data = [to_base64(photo) for photo in PHOTOS]
    image = {"name": "image", "datatype": "BYTES", "shape": [len(data)], "data": data}
    body = {"inputs": [image], "parameters": {"label_set": label_set}}
    with serve_app(bundle.path) as client:
        answer = client.post(f"/v2/models/{bundle.card.name}/infer", json=body).json()
    outputs = {output["name"]: output for output in answer["outputs"]}
    rows = np.array(outputs["scores"]["data"]).reshape(outputs["scores"]["shape"])
    return [dict(zip(outputs["labels"]["data"], row, strict=True)) for row in rows.tolist()]


def run_bulk_job(bundle: Bundle, label_set: str, folder: Path) -> Scores:
    write_photos(folder / "photos")
    job = BulkJob(
        str(folder / "photos"),
        str(folder / "out"),
        question=Question(label_set=(label_set,), threshold=0.0),
        settings=Settings(bundle=bundle.path, device="cpu", label_store="memory"),
        part_size=4,
    )
    asyncio.run(run_bulk(job, lambda _now, _to_do: None))
    rows = sorted(pq.read_table(folder / "out").to_pylist(), key=lambda row: row["photo"])
    return [{label["label"]: label["score"] for label in row["labels"]} for row in rows]


def run_command(bundle: Bundle, label_set: str, folder: Path) -> Scores:
    command = [sys.executable, "-m", "service.cli", "predict", "--json", "--threshold", "0"]
    command += ["--device", "cpu", "--bundle", str(bundle.path), "--label-set", label_set]
    done = subprocess.run(
        [*command, *map(str, write_photos(folder))], cwd=ROOT, check=True, capture_output=True
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return [{label["label"]: label["score"] for label in each["labels"]} for each in answers]


def write_photos(folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}.png" for number in range(len(PHOTOS))]
    for path, photo in zip(paths, PHOTOS, strict=True):
        path.write_bytes(photo)
    return paths


INTERFACES: dict[str, Callable[[Bundle, str, Path], Scores]] = {
    "predict": ask_predict,
    "batch": ask_batch,
    "v2": ask_open_inference,
    "bulk": run_bulk_job,
    "command": run_command,
}


@pytest.mark.parametrize("label_set", ["trained", "everyday"])
@pytest.mark.parametrize("interface", INTERFACES)
def test_interface_answers_with_calibrated_scores(
    bundle: Bundle, tmp_path: Path, interface: str, label_set: str
) -> None:
    expected = compute_expected(bundle, label_set)
    found = INTERFACES[interface](bundle, label_set, tmp_path)
    assert len(found) == len(PHOTOS)
    for row, scores in zip(found, expected, strict=True):
        assert row == pytest.approx(scores, abs=1e-5)


def test_candidate_labels_have_the_scores_of_the_same_names_in_a_set(bundle: Bundle) -> None:
    found = predict(bundle, candidate_labels=list(PAIRS["everyday"]))
    for row, scores in zip(found, compute_expected(bundle, "everyday"), strict=True):
        assert row == pytest.approx(scores, abs=1e-5)
