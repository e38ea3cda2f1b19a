"""A running pair of replicas is switched to a bundle of another embedding space."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from service.bundle.writer import write_bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.photos import make_photo
from tests.support.tiny_bundle import OPEN_HEAD, SPACE, open_draft

SETS = {"cars": ["van", "bus"], "pets": ["cat"], "zoo": ["yak", "gnu", "emu"]}
COUNT = 2


@pytest.fixture
def next_bundle(tmp_path: Path) -> Bundle:
    """The bundle with another template, which is another embedding space."""
    space = SPACE.model_copy(update={"template": "photo of {}"})
    draft = open_draft()
    head = OPEN_HEAD.model_copy(update={"embedding_space": space})
    card = draft.card.model_copy(update={"open_head": head, "version": "2"})
    return write_bundle(tmp_path / card.name, replace(draft, card=card))


@contextmanager
def asked_all_the_time(client: httpx.Client) -> Iterator[list[int]]:
    """Asks for every set in turn in another thread; the list gets the statuses."""
    statuses: list[int] = []
    stopping = threading.Event()
    photo = make_photo()

    def ask() -> None:
        while not stopping.is_set():
            for name in SETS:
                answer = client.post("/predict", params={"label_set": name}, files={"image": photo})
                statuses.append(answer.status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield statuses
    finally:
        stopping.set()
        thread.join()


def read_sets(client: httpx.Client) -> dict[str, list[str]]:
    found = {name: client.get(f"/labels/{name}") for name in SETS}
    assert {answer.status_code for answer in found.values()} == {200}
    return {
        name: [label["name"] for label in answer.json()["labels"]] for name, answer in found.items()
    }


def test_switch_to_another_embedding_space_loses_no_set_and_fails_no_request(
    open_bundle: Bundle, next_bundle: Bundle, tmp_path: Path
) -> None:
    store = ("--label-store", str(tmp_path / "labels.db"))
    with ExitStack() as stack:

        def start(bundle: Bundle) -> tuple[ServerProcess, httpx.Client]:
            server = stack.enter_context(ServerProcess(*serve_command(bundle, *store)))
            return server, stack.enter_context(server.open_client())

        pair = [start(open_bundle) for _ in range(COUNT)]
        for name, labels in SETS.items():
            made = pair[0][1].post("/labels", json={"name": name, "labels": labels})
            assert made.status_code == 201
        version = made.headers["etag"].strip('"')
        for _ in range(COUNT):
            old, asked = pair.pop(0)
            # Loads the sets here if they are not there yet.
            reached = asked.post(
                "/predict",
                params={"label_set": "zoo", "min_version": version},
                files={"image": make_photo()},
            )
            assert reached.status_code == 200
            with asked_all_the_time(asked) as statuses:
                new = start(next_bundle)
                assert read_sets(new[1]) == SETS
            assert statuses
            assert set(statuses) == {200}
            pair.append(new)
            old.stop()
        # Once only: the second replica found what the first one had encoded.
        first, second = (server.stderr for server, _ in pair)
        assert first.count("encoding it again") == len(SETS)
        assert "encoding it again" not in second
