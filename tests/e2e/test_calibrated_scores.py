"""Predictions of a calibrated bundle have the scores sigmoid(scale * logit + shift).

Other interfaces are compared with predictions in their own tests.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.bundle.card import write_prompt
from service.bundle.reader import Bundle
from service.images.decode import decode_image
from service.labels.encoders import open_text_encoder
from tests.support.photos import make_photo
from tests.support.serving import labels_of, send_image, serve_app
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
        embeddings = texts.encode([write_prompt("a {}", name) for name in names])
    logits = run_bundle(bundle, decode_photos(bundle), embeddings).astype(np.float64)
    scales, shifts = np.array(list(PAIRS[label_set].values())).T
    scores = 1 / (1 + np.exp(-(scales * logits + shifts)))
    return [dict(zip(names, row, strict=True)) for row in scores.tolist()]


def predict(bundle: Bundle, **asked: Any) -> Scores:
    with serve_app(bundle.path) as client:
        answers = [send_image(client, p, params={**asked, "threshold": 0}) for p in PHOTOS]
    return [dict(labels_of(answer)) for answer in answers]


def assert_close(scores: Scores, expected: Scores) -> None:
    for row, expected_row in zip(scores, expected, strict=True):
        assert row == pytest.approx(expected_row, abs=1e-5)


@pytest.mark.parametrize("label_set", ["trained", "everyday"])
def test_scores_are_calibrated(bundle: Bundle, label_set: str) -> None:
    assert_close(predict(bundle, label_set=label_set), compute_expected(bundle, label_set))


def test_candidate_labels_have_the_scores_of_the_same_names_in_a_set(bundle: Bundle) -> None:
    scores = predict(bundle, candidate_labels=list(PAIRS["everyday"]))
    assert_close(scores, compute_expected(bundle, "everyday"))
