"""The default bundle, served with default settings, on real photos."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.e2e.server_process import ROOT, ServerProcess
from tests.support.engines import needs_bf16, needs_openvino
from tests.support.serving import labels_of, send_image

SHARED = ROOT.parent / "shared" / "data" / "photos"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared photos are not here")
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


@pytest.mark.parametrize(("name", "label"), [("chelsea", "cat"), ("astronaut", "person")])
def test_packaged_photos_get_exactly_their_trained_label(
    client: httpx.Client, name: str, label: str
) -> None:
    photo = ROOT / "docs" / "photos" / f"{name}.jpg"
    assert ask(client, photo, label_set="trained") == [label]


def test_request_without_parameters_finds_trained_and_everyday_labels(client: httpx.Client) -> None:
    assert {"cat", "kitten"} <= set(ask(client, ROOT / "docs" / "photos" / "chelsea.jpg"))


@needs_shared
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("serve_kitten", {"cat"}),
        ("serve_bus", {"bus", "person"}),
        ("serve_persons", {"person"}),
        ("n02088466_bloodhound", {"dog", "person"}),
        ("n01806567_quail", {"bird"}),
        ("n03594945_jeep", {"truck"}),
    ],
)
def test_shared_photos_get_their_labels(
    client: httpx.Client, name: str, expected: set[str]
) -> None:
    assert expected <= set(ask(client, SHARED / f"{name}.jpg"))


@needs_shared
def test_candidate_labels_are_found_in_matching_photos(client: httpx.Client) -> None:
    shown = {
        "n01871265_tusker": "elephant tusk",
        "n03109150_corkscrew": "corkscrew",
        "n07768694_pomegranate": "pomegranate",
        "serve_kitten": "kitten",
        "serve_bus": "double-decker bus",
    }
    for name, label in shown.items():
        photo = SHARED / f"{name}.jpg"
        assert ask(client, photo, candidate_labels=[*shown.values()], top_k=1) == [label], name


def test_card_has_the_accuracy_of_both_precisions(client: httpx.Client) -> None:
    info = client.get("/info").json()
    accuracy = {metric["precision"]: metric["value"] for metric in info["metrics"]}
    assert accuracy.keys() == {"fp32", "int8"}
    assert min(accuracy.values()) >= 74
    assert accuracy["fp32"] - accuracy["int8"] <= 0.5
    assert len(info["labels"]) == 18
    assert all(label["threshold"] is not None for label in info["labels"])
