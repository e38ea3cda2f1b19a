"""CLIP and SigLIP from a folder of `transformers` to a real server: the scores are its own."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers import AutoImageProcessor
from typer.testing import CliRunner

from export.__main__ import main as export
from export.sources.label_sets import EVERYDAY
from service.bundle.card import RANKED
from service.bundle.reader import Bundle, load_bundle
from service.cli.commands import app
from service.images.decode import PixelArray
from tests.e2e.server_process import ServerProcess, serve_command
from tests.e2e.test_calibrated_scores import PAIRS, Scores
from tests.models.tiny_towers import KINDS, SIDE, run_transformers, write_towers
from tests.support.photos import encode_picture
from tests.support.serving import labels_of, send_image

TOLERANCE = 1e-4
LABELS = ["dog", "fire_hydrant", "car park"]
TEMPLATES = {"clip": "a photo of a {}.", "siglip": "This is a photo of {}."}
PICTURE = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)


@dataclass
class Case:
    kind: str
    folder: Path
    bundle: Bundle

    def expect(self, pictures: Sequence[PixelArray], names: Sequence[str]) -> Scores:
        """Scores of pictures of the model's size by transformers."""
        template = TEMPLATES[self.kind]
        processor = AutoImageProcessor.from_pretrained(self.folder)
        images = [Image.fromarray(picture) for picture in pictures]
        pixels = processor(images, return_tensors="pt")["pixel_values"]
        logits = run_transformers(
            self.folder, pixels, [template.format(name.replace("_", " ")) for name in names]
        )
        scores = logits.softmax(1) if self.kind == "clip" else logits.sigmoid()
        return [dict(zip(names, row, strict=True)) for row in scores.tolist()]


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    root = tmp_path_factory.mktemp(request.param)
    folder = write_towers(root / f"tiny-{request.param}", request.param)
    everyday = root / "everyday.json"
    everyday.write_text(json.dumps({"name": "everyday", "labels": list(PAIRS["everyday"])}))
    given = ["--checkpoint", str(folder), "--label-set", str(everyday)]
    assert export([*given, "--out", str(root / "towers")]) == 0
    return Case(request.param, folder, load_bundle(root / "towers"))


def test_registered_labels_have_the_scores_of_transformers(case: Case, tmp_path: Path) -> None:
    (expected,) = case.expect([PICTURE], LABELS)
    command = serve_command(case.bundle, "--label-store", str(tmp_path / "labels.db"))
    with ServerProcess(*command) as server, server.open_client() as client:
        made = client.post("/labels", json={"name": "mine", "labels": LABELS})
        assert made.status_code == 201, made.text
        photo = encode_picture(Image.fromarray(PICTURE))
        asked = {"label_set": "mine", "top_k": 3}
        answer = send_image(client, photo, params=asked)
        assert dict(labels_of(answer)) == pytest.approx(expected, abs=TOLERANCE)
        some = send_image(client, photo, params={**asked, "include": "dog"})
        assert dict(labels_of(some)) == pytest.approx({"dog": expected["dog"]}, abs=TOLERANCE)
        candidates = send_image(client, photo, params={"candidate_labels": LABELS, "top_k": 3})
        assert dict(labels_of(candidates)) == pytest.approx(expected, abs=TOLERANCE)
        explained = send_image(client, photo, params={**asked, "explain": "true"})
        maps = np.array([label["map"] for label in explained.json()["labels"]])
        assert maps.shape == (3, 3, 3)
        assert ((maps.max(axis=(1, 2)) == 1) | (maps == 0).all(axis=(1, 2))).all()
        head = client.get("/info").json()["open_head"]
        assert (head["kind"], head["maps"], head["encodes_text"]) == (case.kind, True, True)
        assert head["activation"] == ("softmax" if case.kind == "clip" else "sigmoid")
        assert head["embedding_space"]["encoder"] == case.folder.name


def test_export_without_options_answers_the_first_request_with_everyday_labels(
    tmp_path: Path,
) -> None:
    folder, bundle = write_towers(tmp_path / "tiny", "siglip"), tmp_path / "plain"
    assert export(["--checkpoint", str(folder), "--out", str(bundle)]) == 0
    photo = encode_picture(Image.fromarray(PICTURE))
    command = serve_command(load_bundle(bundle), "--label-store", "memory")
    with ServerProcess(*command) as server, server.open_client() as client:
        answer = send_image(client, photo)
        sets = client.get("/labels").json()["label_sets"]
        info = client.get("/info").json()
    assert answer.status_code == 200
    content = answer.json()
    assert content["label_sets"] == [{"name": "everyday", "version": "1", "ranked": True}]
    known = json.loads(EVERYDAY.read_bytes())["labels"]
    assert {label["label"] for label in content["labels"]} <= set(known)
    assert [label["threshold"] for label in content["labels"]] == [0] * 5
    assert (sets[0]["ranked"], info["open_head"]["ranked"]) == (True, True)
    (tmp_path / "photo.png").write_bytes(photo)
    for command in (["predict", str(tmp_path / "photo.png"), "--bundle"], ["info"]):
        said = CliRunner().invoke(app, [*command, str(bundle)], env={"COLUMNS": "300"}).output
        assert RANKED.format(bundle) in said


def test_labels_that_compete_are_not_calibrated_alone(case: Case, tmp_path: Path) -> None:
    listing = {"label_names": ["dog"], "images": {"0.png": {"labels": ["dog"]}}}
    (tmp_path / "labels.json").write_text(json.dumps(listing))
    model = ["--bundle", str(case.bundle.path), "--label-store", str(tmp_path / "labels.db")]
    run = CliRunner().invoke
    assert not run(app, ["labels", "add", "mine", "--label", "dog", *model]).exit_code
    done = run(app, ["labels", "calibrate", "mine", "--photos", str(tmp_path), *model])
    assert done.exit_code
    assert ("has softmax scores" in str(done.exception)) == (case.kind == "clip")
