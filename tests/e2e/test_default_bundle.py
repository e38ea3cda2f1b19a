"""The default bundle, served with default settings, on real photos."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.e2e.server_process import ROOT, ServerProcess
from tests.support.engines import needs_bf16, needs_openvino
from tests.support.serving import labels_of, send_image

PHOTOS = ROOT / "docs" / "photos"
IN_BF16 = pytest.param(
    ("--device", "openvino", "--precision", "bf16"), marks=[needs_openvino, needs_bf16]
)


@pytest.fixture(scope="module", params=[(), IN_BF16], ids=["default", "bf16"])
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A client of `ml-decoder serve`: defaults except port, workers, device and precision."""
    command = ("serve", "--port", "0", *request.param)
    with ServerProcess(*command) as server, server.open_client() as client:
        yield client


def ask(client: httpx.Client, photo: Path, **parameters: Any) -> list[str]:
    response = send_image(client, photo.read_bytes(), params=parameters)
    return [label for label, _ in labels_of(response)]


@pytest.mark.parametrize(
    ("name", "candidate"),
    [("chelsea", "kitten"), ("astronaut", "woman"), ("coffee", "cup of coffee")],
)
def test_photo_gets_the_candidate_label_that_it_shows(
    client: httpx.Client, name: str, candidate: str
) -> None:
    photo, candidates = PHOTOS / f"{name}.jpg", ["kitten", "woman", "cup of coffee", "rocket"]
    assert ask(client, photo, candidate_labels=candidates, top_k=1) == [candidate]


@pytest.mark.parametrize(
    ("name", "trained"), [("chelsea", ["cat"]), ("astronaut", ["person"]), ("rocket", [])]
)
def test_photo_gets_exactly_its_trained_label(
    client: httpx.Client, name: str, trained: list[str]
) -> None:
    assert ask(client, PHOTOS / f"{name}.jpg", label_set="trained") == trained


def test_request_without_parameters_finds_trained_and_everyday_labels(client: httpx.Client) -> None:
    for word in ("calibrated", "precise"):
        found = ask(client, PHOTOS / "chelsea.jpg", threshold=word)
        assert {"cat", "kitten"} <= set(found)


def test_card_has_the_accuracy_of_both_precisions(client: httpx.Client) -> None:
    info = client.get("/info").json()
    accuracy = {metric["precision"]: metric["value"] for metric in info["metrics"]}
    assert accuracy.keys() == {"fp32", "int8"}
    assert min(accuracy.values()) >= 74
    assert accuracy["fp32"] - accuracy["int8"] <= 0.5
    assert len(info["labels"]) == 18
    assert all(label["threshold"] is not None for label in info["labels"])
