"""Labels from photos, and embeddings: both clients against a real server and a fake one."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from ml_decoder_client import ServiceProblem, calls
from tests.client.conftest import LABEL_SET, Fake
from tests.support.photos import make_photo

PHOTOS = [make_photo(seed) for seed in range(4)]
LEARNT = {
    "label_set": {"name": "mine", "version": "1"},
    "label": "our mug",
    "examples": {"positive": 5, "negative": 0, "added": 5, "repeated": 1},
    "separation": {"value": 6.1, "meaning": "clear"},
    **{"threshold": 0.5, "calibrated": False, "advice": None},
    **{"positive": [{"score": 0.5}], "negative": []},
}


def test_label_learns_from_photos_and_forgets_them(client: Any) -> None:
    first = client.learn_label("mine", "our mug", PHOTOS[:2], PHOTOS[2:3])
    assert (first.examples.positive, first.examples.negative, first.examples.added) == (2, 1, 3)
    assert len(first.positive) == 2
    again = client.learn_label("mine", "our mug", PHOTOS[:1])
    assert (again.examples.positive, again.examples.repeated) == (2, 1)
    (scored,) = client.predict(PHOTOS[0], label_set=["mine"], top_k=1).labels
    assert scored.source == "examples"
    assert scored.score == pytest.approx(again.positive[0].score, abs=1e-5)

    found = client.read_label_set("mine")
    assert (found.num_learnt, found.labels[0].examples.positive) == (1, 2)
    labels = [asdict(label) for label in found.labels]
    assert client.replace_label_set("mine", [*labels, "yak"]).num_learnt == 1

    assert client.forget_examples("mine", "our mug") is None
    with pytest.raises(ServiceProblem) as caught:
        client.forget_examples("mine", "our mug")
    assert caught.value.code == "no_examples"
    client.delete_label_set("mine")


def test_embeddings_are_those_of_predict(client: Any) -> None:
    answer = client.predict(PHOTOS[0], embedding=True)
    found = client.embed([PHOTOS[0], b"junk"])
    assert found.images[0].embedding == pytest.approx(answer.embedding, abs=1e-6)
    assert found.images[1].error["code"] == "invalid_image"
    assert found.width == len(answer.embedding)
    assert np.linalg.norm(answer.embedding) == pytest.approx(1, abs=1e-6)
    assert client.predict(PHOTOS[0]).embedding is None
    for photos in ([], PHOTOS[:1]):
        with pytest.raises(ServiceProblem) as caught:
            client.embed(photos, ["a mug"])
        assert caught.value.code == "no_shared_space"
    with pytest.raises(TypeError, match="texts must be a list of texts, not one"):
        calls.embed(texts="a mug")


def test_set_with_a_fit_is_read_and_written_without_it(kind: Any, fake: Fake) -> None:
    service, url = fake
    counts = {"photos": 526, "positive": 41, "negative": 0, "precision": None, "recall": None}
    fit = {**counts, "text_ap": 0.43, "learnt_ap": 0.58, "threshold": 0.4, "precise": None}
    label = {"name": "cat", "prompt": None, "threshold": 0.4, "calibrated": True, "fit": fit}
    service.set_answer({**LABEL_SET, "labels": [label]})
    with kind(url) as client:
        found = client.read_label_set("mine")
        assert (found.labels[0].fit.positive, found.labels[0].fit.text_ap) == (41, 0.43)
        client.replace_label_set("mine", found.labels)
        label["threshold"] = 0.9  # set since
        client.replace_label_set("mine", [label])
    bodies = [service.bodies.get() for _ in service.requests]
    written = [json.loads(body)["labels"][0] for body in bodies[-2:]]
    assert written[0] == {"name": "cat", "calibrated": True, "own_embedding": False}
    assert written[1] == {"name": "cat", "threshold": 0.9, "calibrated": True}


@pytest.mark.parametrize(
    ("size", "count", "requests"),
    [(10, 200, 1), (10, 450, 3), (9 * 2**20, 3, 2), (21 * 2**20, 2, 2)],
)
def test_many_photos_go_in_several_requests(
    kind: Any, fake: Fake, size: int, count: int, requests: int
) -> None:
    service, url = fake
    service.set_answer(LEARNT)
    with kind(url) as client:
        learnt = client.learn_label("mine", "our mug", [bytes(size)] * count, replace=True)
    paths = [path for _, path, _ in service.requests]
    first = "/labels/mine/examples?label=our+mug&replace=true"
    assert paths == [first, *["/labels/mine/examples?label=our+mug"] * (requests - 1)]
    bodies = [service.bodies.get() for _ in paths]
    assert sum(body.count(b'name="positive"') for body in bodies) == count
    assert max(map(len, bodies)) <= max(20 * 2**20, size + 1000)
    assert (learnt.examples.positive, learnt.examples.repeated) == (5, 1)
