"""Label store locked, full, read-only, hanging: predictions go on, registrations are refused.

The disk is a tmpfs, which needs the right to mount it. `tests/service/labels/store/test_store.py`
restarts PostgreSQL.
"""

import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.postgres import Postgres
from tests.support.serving import assert_problem, assert_still_serving, labels_of, send_image

PETS = {"name": "pets", "labels": ["red panda", "axolotl"]}
ZOO = {"name": "zoo", "labels": ["yak"]}


class Disk:
    """A disk of one MiB that can be filled and made read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"
        self._mount("-t", "tmpfs", "-o", "size=1m", "tmpfs")

    def _mount(self, *options: str) -> None:
        subprocess.run(["mount", *options, str(self.path)], check=True, capture_output=True)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def fill(self) -> None:
        with self._filler.open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:  # full
                pass

    def empty(self) -> None:
        self._filler.unlink()

    def remount(self, mode: str) -> None:
        """Remounts the disk as `ro` or `rw`."""
        self._mount("-o", f"remount,{mode}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    try:
        disk = Disk(tmp_path)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no right to mount a disk")
    yield disk
    disk.close()


def start(bundle: Bundle, folder: Path, *flags: str) -> ServerProcess:
    store = str(folder / "labels.db")
    return ServerProcess(*serve_command(bundle, "--label-store", store, *flags))


def assert_predictions_go_on(client: httpx.Client) -> None:
    answer = send_image(client, params={"label_set": "pets", "top_k": 2})
    assert {label for label, _ in labels_of(answer)} == set(PETS["labels"])
    assert_still_serving(client)
    assert client.get("/readyz").status_code == 200


def test_locked_store_refuses_what_needs_it_until_it_is_free(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    with (
        closing(sqlite3.connect(tmp_path / "labels.db", isolation_level=None)) as locker,
        start(open_bundle, tmp_path) as server,
        server.open_client() as client,
    ):
        assert client.post("/labels", json=PETS).status_code == 201
        locker.execute("BEGIN IMMEDIATE")
        refused = client.post("/labels", json=ZOO)
        assert_problem(refused, 503, "store_unavailable")
        assert int(refused.headers["retry-after"]) > 0
        assert_predictions_go_on(client)
        locker.execute("ROLLBACK")
        assert client.post("/labels", json=ZOO).status_code == 201
        assert "Traceback" not in server.stderr
        server.send_signal(15)
        assert server.wait() == 0


def test_full_disk_refuses_registrations_until_there_is_room(
    open_bundle: Bundle, disk: Disk
) -> None:
    with start(open_bundle, disk.path) as server, server.open_client() as client:
        assert client.post("/labels", json=PETS).status_code == 201
        disk.fill()
        large = {"name": "zoo", "labels": [f"yak {i} {'x' * 100}" for i in range(500)]}
        assert_problem(client.post("/labels", json=large), 507, "store_full")
        assert_problem(client.get("/labels/zoo"), 404, "label_set_not_found")
        assert_predictions_go_on(client)
        disk.empty()
        assert client.post("/labels", json=large).status_code == 201
        assert_predictions_go_on(client)


def test_read_only_store_answers_and_refuses_writes_until_it_is_writable(
    open_bundle: Bundle, disk: Disk
) -> None:
    with start(open_bundle, disk.path) as server, server.open_client() as client:
        assert client.post("/labels", json=PETS).status_code == 201
        server.send_signal(signal.SIGKILL)  # leaves the log of SQLite
        server.wait()
    disk.remount("ro")
    with start(open_bundle, disk.path) as server, server.open_client() as client:
        assert "pets" in [entry["name"] for entry in client.get("/labels").json()["label_sets"]]
        for refused in (
            client.post("/labels", json=ZOO),
            client.put("/labels/pets", json={"labels": ["yak"]}),
            client.patch("/labels/pets", json={"labels": [{"name": "axolotl", "threshold": 0.5}]}),
            client.delete("/labels/pets"),
        ):
            assert_problem(refused, 409, "store_read_only")
        assert_predictions_go_on(client)
        disk.remount("rw")
        assert client.post("/labels", json=ZOO).status_code == 201
        assert_predictions_go_on(client)
        assert "Traceback" not in server.stderr


def test_service_on_a_read_only_mount_follows_a_writer(open_bundle: Bundle, disk: Disk) -> None:
    mount = disk.path / "mount"
    mount.mkdir()
    for options in (("--bind", str(disk.path)), ("-o", "remount,ro,bind")):
        subprocess.run(["mount", *options, str(mount)], check=True, capture_output=True)
    try:
        with (
            start(open_bundle, disk.path) as writer,
            writer.open_client() as writing,
            start(open_bundle, mount) as server,
            server.open_client() as client,
        ):
            version = writing.post("/labels", json=PETS).json()["version"]
            asked = {"label_set": "pets", "min_version": version}
            assert send_image(client, params=asked).status_code == 200
            assert writer.stop() == 0
            assert_predictions_go_on(client)
            assert_problem(client.delete("/labels/pets"), 409, "store_read_only")
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


def test_hanging_database_delays_neither_predictions_nor_the_shutdown(
    open_bundle: Bundle, postgres: Postgres
) -> None:
    command = serve_command(open_bundle, "--label-store", postgres.url)
    with (
        ServerProcess(*command, "--drain-seconds", "1") as server,
        server.open_client() as client,
        postgres.hanging(),
    ):
        with pytest.raises(httpx.ReadTimeout):
            client.post("/labels", json=PETS, timeout=1.0)
        assert_still_serving(client)
        assert server.stop() == 0
