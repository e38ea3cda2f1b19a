"""SIGHUP: the bundle and the keys that are on disk now, without a lost request."""

import dataclasses
import os
import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.e2e.test_metrics import read_value
from tests.faults.conftest import serve
from tests.faults.faulty_process import FaultyProcess
from tests.faults.test_connections import HEAD, read_reply
from tests.faults.test_load import occupy
from tests.faults.test_start import flip_a_byte
from tests.faults.test_workers import connect_to, kill, list_pids
from tests.support.serving import PHOTO, send_image
from tests.support.threads import wait_until
from tests.support.tiny_bundle import copy_bundle, open_card, open_draft, write_draft

OLD_KEY, NEW_KEY = "old-key-of-the-shop", "new-key-of-the-shop"
READYZ = 3
IDLE_SECONDS = 0.05  # so that a shared machine has time to load a bundle
# Two workers make their log line after those of each.
DONE = {1: "INFO .* reloaded model=", 2: "INFO .* all workers have reloaded"}
FAILED = {1: "ERROR .* the reload failed", 2: "ERROR .* worker 1 of 2 has not reloaded"}


@pytest.fixture
def bundles(open_bundle: Bundle, tmp_path: Path) -> tuple[Path, Path]:
    """The bundle and one of version 2."""
    card = open_card().model_copy(update={"version": "2"})
    return open_bundle.path, write_draft(tmp_path / "next", open_draft(card)).path


@pytest.fixture
def link(bundles: tuple[Path, Path], tmp_path: Path) -> Path:
    put(tmp_path / "current", bundles[0])
    return tmp_path / "current"


def put(link: Path, bundle: Path) -> None:
    new = link.with_suffix(".new")
    new.symlink_to(bundle)
    new.rename(link)


def reload(server: ServerProcess, pattern: str) -> None:
    """Sends SIGHUP and waits for another line with the pattern."""
    count = len(re.findall(pattern, server.stderr))
    server.send_signal(signal.SIGHUP)
    wait_until(lambda: len(re.findall(pattern, server.stderr)) > count, 120)


class Asking:
    """Three clients that send photos, one of them on one connection, and one that asks `/readyz`.

    `answers` are all versions, statuses and errors; `last` has the last of each client.
    """

    def __init__(self, server: ServerProcess, **headers: str) -> None:
        self.answers, self.last = set[object](), dict[int, object]()
        self._server, self._headers = server, headers
        self._ended = threading.Event()
        self._threads = ThreadPoolExecutor(4)

    def __enter__(self) -> Self:
        self._asking = [self._threads.submit(self._ask, number) for number in range(4)]
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for each in self._asking:
            each.result()
        self._threads.shutdown()

    def wait(self) -> dict[int, object]:
        """Returns an answer of each client to a request that it sends from now on."""
        for _ in range(2):
            self.last.clear()
            wait_until(lambda: len(self.last) == 4)
        return self.last

    def _ask(self, number: int) -> None:
        client = self._server.connect(*self._server.find_address())
        while not self._ended.wait(IDLE_SECONDS):
            try:
                if number == READYZ:
                    answer: object = client.get("/readyz").status_code
                else:
                    found = send_image(client, headers=self._headers)
                    is_good = found.status_code == 200
                    answer = found.json()["model"]["version"] if is_good else found.status_code
            except Exception as error:
                answer = repr(error)
            self.answers.add(answer)
            self.last[number] = answer
            if number:
                client.close()
                client = self._server.connect(*self._server.find_address())
        client.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_reload_under_load_loses_no_request_and_a_failed_one_keeps_the_model(
    bundles: tuple[Path, Path], link: Path, open_bundle: Bundle, tmp_path: Path, workers: int
) -> None:
    damaged = copy_bundle(open_bundle, tmp_path / "damaged")
    flip_a_byte(damaged)
    flags = ("--label-store", "memory", "--workers", str(workers))
    with ServerProcess(*serve_command(link), *flags) as server, server.open_client() as client:
        server.wait_for_line("serving url=")
        with Asking(server) as asking:
            body = {"name": "pets", "labels": ["cat"]}
            assert client.post("/labels", json=body).status_code == 201
            first, second = bundles
            for bundle, version in ((second, "2"), (damaged, "2"), (first, "1.0"), (second, "2")):
                put(link, bundle)
                if workers == 2:  # a worker itself ignores the signal
                    os.kill(list_pids(server, 1)[0], signal.SIGHUP)
                reload(server, (FAILED if bundle == damaged else DONE)[workers])
                assert asking.wait() == {**dict.fromkeys(range(3), version), READYZ: 200}
                assert client.get("/info").json()["model"]["version"] == version
                assert client.get("/v2/models/tiny-open").json()["versions"] == [version]
                assert client.get("/labels/everyday").headers["etag"] == f'"{version}"'
                assert client.get("/labels/pets").status_code == 200
        assert asking.answers == {"1.0", "2", 200}
        runs = 'device="cpu",model="tiny-open",precision="fp32",provider="CPUExecutionProvider"'
        for version, value in (("1.0", 0), ("2", 1)):
            sample = f'ml_decoder_model_info{{{runs},version="{version}"}}'
            wait_until(lambda s=sample, v=value: read_value(client, s) == v)
        for outcome, count in (("done", 3 * workers), ("failed", 1)):
            sample = f'ml_decoder_reloads_total{{outcome="{outcome}"}}'
            assert read_value(client, sample) == count
        client.close()
        assert server.stop() == 0
    reason = "does not match its sha256.*: correct it and send SIGHUP again"
    assert re.search(
        f"the reload failed, and the earlier model stays in use: .*{reason}", server.stderr
    )
    assert server.stderr.count("ERROR") == workers
    assert "Traceback" not in server.stderr


def test_signals_are_one_reload_while_it_loads_and_requests_end_on_their_bundle(
    bundles: tuple[Path, Path], link: Path, open_bundle: Bundle, tmp_path: Path
) -> None:
    served = dataclasses.replace(open_bundle, path=link)
    more = b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with FaultyProcess(served, tmp_path, opens=False) as server, ThreadPoolExecutor(1) as clients:
        address = server.find_address()
        server.send_signal(signal.SIGHUP)  # perhaps before there is a handler
        with server.connect(*address) as client:
            assert client.get("/livez").status_code == 200
        for _ in range(3):
            server.send_signal(signal.SIGHUP)
        server.open()
        with server.open_client() as client, server.open_client() as another:
            server.wait_for_line("reloaded model=")
            with socket.create_connection(address, timeout=60) as upload:
                upload.sendall(HEAD + more % len(PHOTO))
                assert upload.recv(100).startswith(b"HTTP/1.1 100 ")
                held = occupy(server, client, clients)
                put(link, bundles[1])
                reload(server, "reloaded model=")
                assert send_image(another).json()["model"]["version"] == "2"
                server.send_signal(signal.SIGHUP)  # once more when the old one has ended
                assert another.get("/readyz").status_code == 200
                upload.sendall(PHOTO)
                assert b'"version":"1.0"' in read_reply(upload)
            assert server.stderr.count("reloaded model=") == 2
            assert not held.done()
            server.release()
            assert held.result().json()["model"]["version"] == "1.0"
            wait_until(lambda: server.stderr.count("reloaded model=") == 3)
            server.block()
            held = occupy(server, client, clients)
            server.send_signal(signal.SIGTERM)
            server.wait_for_line("draining")
            server.send_signal(signal.SIGHUP)
            server.release()
            assert held.result().status_code == 200
        assert server.wait() == 0
    assert server.stderr.count("reloaded model=") == 3
    assert "ERROR" not in server.stderr


def test_worker_that_starts_is_waited_for_also_if_it_ends(
    bundles: tuple[Path, Path], link: Path, open_bundle: Bundle, tmp_path: Path
) -> None:
    served = dataclasses.replace(open_bundle, path=link)
    with FaultyProcess(served, tmp_path, "--workers", "2") as server:
        server.wait_for_line("serving url=")
        kill(server, 1)
        reload(server, DONE[2])
        server.shut()
        kill(server, 2)
        wait_until(lambda: len(list_pids(server, 2)) == 2)
        put(link, bundles[1])
        server.send_signal(signal.SIGHUP)
        server.open(1)
        wait_until(lambda: server.stderr.count("version=2") == 1)
        kill(server, 2)  # it has been asked
        wait_until(lambda: len(list_pids(server, 2)) == 3)
        server.open()
        wait_until(lambda: len(re.findall(DONE[2], server.stderr)) == 2)
        for worker in (1, 2):
            with connect_to(server, worker) as client:
                assert send_image(client).json()["model"]["version"] == "2"
        assert "has not reloaded" not in server.stderr
        assert server.stop() == 0


def test_keys_rotate_under_load(open_bundle: Bundle, tmp_path: Path) -> None:
    file, new_file = tmp_path / "keys", tmp_path / "new"
    file.write_text(f"shop:{OLD_KEY}")
    flags = ("--workers", "2", "--predict-keys-file", str(file))
    with serve(open_bundle, *flags) as (server, _):
        server.wait_for_line("serving url=")
        with Asking(server, **{"X-API-Key": OLD_KEY}) as old:
            new_file.write_text(f"shop:{NEW_KEY}\nshop:{OLD_KEY}")
            new_file.rename(file)
            wait_until(lambda: server.stderr.count("read the key file again") == 2)
            with Asking(server, **{"X-API-Key": NEW_KEY}) as new:
                old.wait()
                assert old.answers == {"1.0", 200}
                new_file.write_text(f"shop:{NEW_KEY}")
                new_file.rename(file)
                reload(server, DONE[2])
                assert old.wait() == {**dict.fromkeys(range(3), 401), READYZ: 200}
                new.wait()
            assert new.answers == {"1.0", 200}
    assert "ERROR" not in server.stderr
    assert re.search(r'path="/predict" status=200 .*caller=shop', server.stderr)
    assert OLD_KEY not in server.stderr
    assert NEW_KEY not in server.stderr
