"""CLIP and SigLIP from a folder of `transformers` to a real server: the scores are its own."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers import AutoImageProcessor

from export.__main__ import main as export
from service.bundle.reader import Bundle, load_bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.models.tiny_towers import KINDS, SIDE, run_transformers, write_towers
from tests.support.serving import labels_of

TOLERANCE = 1e-4
LABELS = ["dog", "fire_hydrant", "car park"]
PROMPTS = {
    "clip": [f"a photo of a {name}." for name in ("dog", "fire hydrant", "car park")],
    "siglip": [f"This is a photo of {name}." for name in ("dog", "fire hydrant", "car park")],
}
PICTURE = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)


@dataclass
class Case:
    kind: str
    folder: Path
    bundle: Bundle

    def expect(self, texts: list[str]) -> list[float]:
        """Scores of the picture by transformers."""
        processor = AutoImageProcessor.from_pretrained(self.folder)
        pixels = processor(Image.fromarray(PICTURE), return_tensors="pt")["pixel_values"]
        (logits,) = run_transformers(self.folder, pixels, texts)
        return (logits.softmax(0) if self.kind == "clip" else logits.sigmoid()).tolist()


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    root = tmp_path_factory.mktemp(request.param)
    folder = write_towers(root / f"tiny-{request.param}", request.param)
    assert export(["--checkpoint", str(folder), "--out", str(root / "towers")]) == 0
    return Case(request.param, folder, load_bundle(root / "towers"))


def encode_picture() -> bytes:
    file = io.BytesIO()
    Image.fromarray(PICTURE).save(file, "PNG")
    return file.getvalue()


def test_registered_labels_have_the_scores_of_transformers(case: Case, tmp_path: Path) -> None:
    expected = dict(zip(LABELS, case.expect(PROMPTS[case.kind]), strict=True))
    command = serve_command(case.bundle, "--label-store", str(tmp_path / "labels.db"))
    with ServerProcess(*command) as server, server.open_client() as client:
        made = client.post("/labels", json={"name": "mine", "labels": LABELS})
        assert made.status_code == 201, made.text
        files = {"image": encode_picture()}
        asked = {"label_set": "mine", "top_k": 3}
        found = client.post("/predict", files=files, params=asked)
        assert dict(labels_of(found)) == pytest.approx(expected, abs=TOLERANCE)
        some = client.post("/predict", files=files, params={**asked, "include": "dog"})
        assert dict(labels_of(some)) == pytest.approx({"dog": expected["dog"]}, abs=TOLERANCE)
        candidates = client.post(
            "/predict", files=files, params={"candidate_labels": LABELS, "top_k": 3}
        )
        assert dict(labels_of(candidates)) == pytest.approx(expected, abs=TOLERANCE)
        explained = client.post("/predict", files=files, params={**asked, "explain": "true"})
        maps = np.array([label["map"] for label in explained.json()["labels"]])
        assert maps.shape == (3, 3, 3)
        assert ((maps.max(axis=(1, 2)) == 1) | (maps == 0).all(axis=(1, 2))).all()
        head = client.get("/info").json()["open_head"]
        assert (head["kind"], head["maps"], head["encodes_text"]) == (case.kind, True, True)
        assert head["activation"] == ("softmax" if case.kind == "clip" else "sigmoid")
        assert head["embedding_space"]["encoder"] == case.folder.name
