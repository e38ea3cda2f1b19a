"""A running pair of replicas is switched to a bundle of another embedding space."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.serving import send_image
from tests.support.tiny_bundle import SPACE, open_card, open_draft, write_draft

SETS = {"cars": ["van", "bus"], "pets": ["cat"], "zoo": ["yak", "gnu", "emu"]}
COUNT = 2


@pytest.fixture
def next_bundle(tmp_path: Path) -> Bundle:
    """The bundle with another template, which is another embedding space."""
    space = SPACE.model_copy(update={"template": "photo of {}"})
    card = open_card(embedding_space=space).model_copy(update={"version": "2"})
    return write_draft(tmp_path, open_draft(card))


def ask_until(stopping: threading.Event, client: httpx.Client) -> set[int]:
    """Asks for every set in turn; returns the statuses."""
    statuses = set()
    while not stopping.is_set():
        answers = [send_image(client, params={"label_set": name}) for name in SETS]
        statuses |= {answer.status_code for answer in answers}
    return statuses


def read_sets(client: httpx.Client) -> dict[str, list[str]]:
    sets = {}
    for name in SETS:
        answer = client.get(f"/labels/{name}").raise_for_status()
        sets[name] = [label["name"] for label in answer.json()["labels"]]
    return sets


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
            reached = send_image(asked, params={"label_set": "zoo", "min_version": version})
            assert reached.status_code == 200
            with ThreadPoolExecutor(1) as asking:
                stopping = threading.Event()
                statuses = asking.submit(ask_until, stopping, asked)
                try:
                    new = start(next_bundle)
                    assert read_sets(new[1]) == SETS
                finally:
                    stopping.set()
                assert statuses.result() == {200}
            pair.append(new)
            old.stop()
        # Once only: the second replica found what the first one had encoded.
        first, second = (server.stderr for server, _ in pair)
        assert first.count("encoding it again") == len(SETS)
        assert "encoding it again" not in second
