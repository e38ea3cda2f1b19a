"""Label sets on real servers: restarts, kills and two processes on one store.

`LABEL_KILL_ROUNDS=50` kills more often than the default.
"""

import os
import signal
import threading
import time
from pathlib import Path

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.serving import labels_of, send_image

KILL_ROUNDS = int(os.environ.get("LABEL_KILL_ROUNDS", "2"))


def start(bundle: Bundle, store: Path | str) -> ServerProcess:
    return ServerProcess(*serve_command(bundle, "--label-store", str(store)))


def register(client: httpx.Client, name: str, labels: list[str]) -> httpx.Response:
    return client.post("/labels", json={"name": name, "labels": labels})


def predict(client: httpx.Client, **asked: object) -> httpx.Response:
    return send_image(client, params={"top_k": 100, **asked})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "labels.db"


def register_until_killed(client: httpx.Client, first: int, acknowledged: list[str]) -> None:
    for i in range(first, first + 10_000):
        try:
            if register(client, f"set{i}", [f"a{i}", f"b{i}"]).status_code == 201:
                acknowledged.append(f"set{i}")
        except httpx.HTTPError:
            return


def test_kill_during_registrations_loses_nothing_and_leaves_no_partial_set(
    open_bundle: Bundle, store: Path
) -> None:
    acknowledged: list[str] = []
    for round_number in range(KILL_ROUNDS):
        with start(open_bundle, store) as server, server.open_client() as client:
            assert_whole(client, acknowledged)
            seen = len(acknowledged)
            arguments = (client, round_number * 10_000, acknowledged)
            worker = threading.Thread(target=register_until_killed, args=arguments)
            worker.start()
            # Each round kills after another number of sets, hence at another point of a write.
            while worker.is_alive() and len(acknowledged) < seen + 3 + round_number % 7:
                time.sleep(0.001 * (round_number % 5))
            server.send_signal(signal.SIGKILL)
            worker.join()
            server.wait()
        assert len(acknowledged) > seen
    with start(open_bundle, store) as server, server.open_client() as client:
        assert_whole(client, acknowledged)
        assert register(client, "afterwards", ["x"]).status_code == 201


def assert_whole(client: httpx.Client, acknowledged: list[str]) -> None:
    listed = client.get("/labels").json()["label_sets"]
    stored = {entry["name"] for entry in listed if entry["origin"] == "store"}
    assert set(acknowledged) <= stored
    for name in stored:
        number = name.removeprefix("set")
        labels = [label["name"] for label in client.get(f"/labels/{name}").json()["labels"]]
        assert labels == [f"a{number}", f"b{number}"]
    if acknowledged:
        last = acknowledged[-1]
        assert len(labels_of(predict(client, label_set=last))) == 2
