"""Both clients, on a real server; every test runs for the blocking and for the async one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.client import (
    Answer,
    AsyncClient,
    Client,
    NewLabel,
    ServiceProblem,
    ServiceUnreachable,
)
from tests.fake_service import FakeService
from tests.photos import make_photo

Fake = tuple[FakeService, str]
PHOTO = make_photo()


class Awaited:
    """An `AsyncClient` that is used like a `Client`, so that one test serves both."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(*arguments, **options)

    def __enter__(self) -> Awaited:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def predict_many(self, *arguments: Any, **options: Any) -> list[Any]:
        async def collect() -> list[Any]:
            return [found async for found in self._client.predict_many(*arguments, **options)]

        return self._runner.run(collect())

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *arguments, **options: self._runner.run(method(*arguments, **options))


@pytest.fixture(params=[Client, Awaited])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def client(kind: Any, server_url: str) -> Iterator[Any]:
    with kind(server_url) as client:
        yield client
        assert client.predict(PHOTO, top_k=1).labels, "a good request still works"


def test_photo_is_labelled_from_bytes_and_from_a_file(client: Any, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(PHOTO)
    from_bytes, from_file = client.predict(PHOTO, top_k=3), client.predict(path, top_k=3)
    assert isinstance(from_bytes, Answer)
    assert from_bytes.labels == from_file.labels
    assert len(from_bytes.labels) == 3
    assert (from_bytes.image.width, from_bytes.image.height) == (48, 32)


def test_every_parameter_reaches_the_service(client: Any) -> None:
    def names(**question: Any) -> list[str]:
        return [label.label for label in client.predict(PHOTO, **question).labels]

    assert set(names(candidate_labels=["yak", "newt"], top_k=9)) == {"yak", "newt"}
    assert set(names(label_set=["everyday"], top_k=9)) == {"chair", "table", "lamp"}
    assert set(names(include=["cat", "dog"], threshold=0.0)) == {"cat", "dog"}
    assert "cat" not in names(exclude=["cat"], threshold=0)
    assert names(min_version=0, threshold="calibrated") == names()


def test_many_photos_come_back_in_order_and_a_bad_one_costs_only_itself(client: Any) -> None:
    photos = [make_photo(seed) for seed in range(20)]
    photos[7] = b"junk"
    answers = list(client.predict_many(photos, at_once=4, top_k=2))
    assert isinstance(answers[7], ServiceProblem)
    assert answers[7].code == "invalid_image"
    assert len(answers) == 20
    for photo, answer in zip(photos, answers, strict=True):
        if photo != b"junk":
            alone = client.predict(photo, top_k=2)
            assert [la.label for la in answer.labels] == [la.label for la in alone.labels]


def test_file_that_is_not_there_is_an_error_of_its_own(client: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        client.predict(tmp_path / "none.png")
    (missing,) = client.predict_many([tmp_path / "none.png"])
    assert isinstance(missing, FileNotFoundError)


def test_problem_says_what_the_service_says(client: Any) -> None:
    with pytest.raises(ServiceProblem, match="A label is unknown: 'unicorn'") as caught:
        client.predict(PHOTO, include=["unicorn"])
    problem = caught.value
    assert (problem.status, problem.code) == (422, "unknown_label")
    assert problem.request_id
    with pytest.raises(ServiceProblem, match="top_k: Input should be greater") as caught:
        client.predict(PHOTO, top_k=0)
    assert caught.value.errors[0]["name"] == "top_k"


def test_label_set_is_registered_replaced_and_deleted_by_version(client: Any) -> None:
    made = client.register_label_set("my-zoo", ["yak", NewLabel(name="newt", threshold=0.25)])
    assert [(la.name, la.calibrated) for la in made.labels] == [("yak", False), ("newt", True)]
    again = client.register_label_set("my-zoo", ["yak", NewLabel(name="newt", threshold=0.25)])
    assert again == made == client.read_label_set("my-zoo")
    assert "my-zoo" in {found.name for found in client.list_label_sets()}
    with pytest.raises(ServiceProblem) as caught:
        client.replace_label_set("my-zoo", ["crow"], if_version="999")
    assert caught.value.status == 412
    replaced = client.replace_label_set("my-zoo", ["crow"], if_version=made.version)
    assert replaced.num_labels == 1
    with pytest.raises(ServiceProblem) as caught:
        client.delete_label_set("my-zoo", if_version=made.version)
    assert caught.value.status == 412
    client.delete_label_set("my-zoo", if_version=replaced.version)
    with pytest.raises(ServiceProblem) as caught:
        client.read_label_set("my-zoo")
    assert caught.value.code == "label_set_not_found"


def test_card_is_read(client: Any) -> None:
    info = client.info()
    assert info.model.name == "tiny-open"
    assert info.runtime["device"] == "cpu"


def test_refused_call_is_sent_again_when_the_service_says(kind: Any, fake: Fake) -> None:
    service, url = fake
    service.answers = [(429, {"Retry-After": "1"}), (503, {"Retry-After": "0"}), (200, {})]
    started = time.monotonic()
    with kind(url) as client:
        assert client.predict(PHOTO).request_id == "1"
    assert time.monotonic() - started >= 1.0
    assert len(service.requests) == 3


def test_refusals_end_in_the_last_problem(kind: Any, fake: Fake) -> None:
    service, url = fake
    service.answers = [(429, {"Retry-After": "0"})]
    service.body = json.dumps({"title": "The service is busy", "code": "queue_full"}).encode()
    with kind(url, retries=2) as client, pytest.raises(ServiceProblem, match="busy") as caught:
        client.predict(PHOTO)
    assert caught.value.code == "queue_full"
    assert len(service.requests) == 3


@pytest.mark.parametrize("status", [400, 404, 409, 422, 500, 504])
def test_other_errors_are_not_sent_again(kind: Any, fake: Fake, status: int) -> None:
    service, url = fake
    service.answers = [(status, {})]
    service.body = b"<html>not ours"
    with kind(url) as client, pytest.raises(ServiceProblem, match=f"HTTP {status}"):
        client.predict(PHOTO)
    assert len(service.requests) == 1


def test_broken_connection_is_tried_again(kind: Any, fake: Fake) -> None:
    service, url = fake
    service.answers = [(0, {}), (200, {})]
    with kind(url) as client:
        assert client.predict(PHOTO).request_id == "1"


def test_service_that_is_away_is_one_error(kind: Any) -> None:
    client = kind("http://127.0.0.1:9", retries=0)
    with client, pytest.raises(ServiceUnreachable, match=r"127\.0\.0\.1:9"):
        client.info()


def test_connections_are_kept(kind: Any, fake: Fake) -> None:
    service, url = fake
    with kind(url, connections=2) as client:
        list(client.predict_many([PHOTO] * 12, at_once=4))
    assert len(service.requests) == 12
    assert len(service.connections) <= 2


def test_key_and_path_are_sent_below_the_address(kind: Any, fake: Fake) -> None:
    service, url = fake
    with kind(f"{url}/tags/", api_key="sesame") as client:
        client.predict(PHOTO)
        client.delete_label_set("a/b", if_version="7")
    assert [request[:2] for request in service.requests] == [
        ("POST", "/tags/predict"),
        ("DELETE", "/tags/labels/a%2Fb"),
    ]
    for _, _, headers in service.requests:
        assert headers["Authorization"] == "Bearer sesame"
    assert service.requests[1][2]["If-Match"] == '"7"'
