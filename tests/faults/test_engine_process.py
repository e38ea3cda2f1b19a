"""Two workers with one engine process: each part killed under load, stopped, unable to start."""

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess
from tests.faults.conftest import serve_command
from tests.faults.faulty_process import FaultyProcess
from tests.faults.faulty_server import make_fault
from tests.faults.test_start import assert_start_fails, flip_a_byte
from tests.faults.test_workers import Load, connect_to, count_ready, kill, list_pids, read_value
from tests.support.serving import assert_problem, assert_still_serving, send_image
from tests.support.threads import wait_until
from tests.support.tiny_bundle import copy_bundle

SHARED = ("--workers", "2", "--shared-engine", "true")
ENGINE = 3  # its number follows the workers'


@pytest.fixture
def server(open_bundle: Bundle, tmp_path: Path) -> Iterator[FaultyProcess]:
    with FaultyProcess(open_bundle, tmp_path, *SHARED) as server:
        server.wait_for_line("serving url=")
        yield server
        with server.open_client() as client:
            wait_until(lambda: client.get("/readyz").status_code == 200)
            assert_still_serving(client)
        assert server.stop() == 0


def list_engines(server: ServerProcess) -> list[int]:
    return [int(p) for p in re.findall(rf"engine started worker={ENGINE} pid=(\d+)", server.stderr)]


def test_engine_serves_the_label_sets_of_all_workers(server: FaultyProcess) -> None:
    with connect_to(server, 1) as first, connect_to(server, 2) as second:
        assert first.post("/labels", json={"name": "pets", "labels": ["cat"]}).status_code == 201
        wait_until(lambda: second.get("/labels/pets").status_code == 200)
        query = {"label_set": "pets,trained", "threshold": "0", "embedding": "true"}
        answers = [send_image(client, params=query).json() for client in (first, second)]
        answers += [send_image(first, params={"candidate_labels": "dog", "threshold": "0"}).json()]
        assert answers[0]["labels"] == answers[1]["labels"]
        assert "cat" in {label["label"] for label in answers[0]["labels"]}
        assert [label["label"] for label in answers[2]["labels"]] == ["dog"]
    assert re.search(rf"run images=\d+ worker={ENGINE}\n", server.stderr)
    assert not re.search(r"run images=\d+ worker=[12]\n", server.stderr)


def test_killed_engine_fails_what_it_ran_and_is_replaced(server: FaultyProcess) -> None:
    load = Load(server, 6)
    wait_until(lambda: len(load.statuses) > 20)
    server.shut()
    os.kill(list_engines(server)[-1], signal.SIGKILL)
    server.wait_for_line(f"ERROR .*engine ended worker={ENGINE} reason=SIGKILL")
    with server.open_client() as client:
        wait_until(lambda: client.get("/readyz").status_code == 503)
        assert client.get("/livez").status_code == 200
        refused = send_image(client)
        assert_problem(refused, 503, "not_ready")
        assert refused.headers["retry-after"] == "2"
        wait_until(lambda: read_value(client, "ml_decoder_ready") == 0)
        server.open()
        wait_until(lambda: client.get("/readyz").status_code == 200)
    answered = load.statuses.count(200)
    wait_until(lambda: load.statuses.count(200) > answered + 20)
    load.end()
    assert not load.lost
    assert set(load.statuses) == {200, 503}


def test_killed_worker_leaves_engine_and_other_worker_alone(server: FaultyProcess) -> None:
    load = Load(server, 6)
    wait_until(lambda: len(load.statuses) > 20)
    kill(server, 1)
    wait_until(lambda: len(list_pids(server, 1)) == 2)
    with connect_to(server, 1) as client:
        assert_still_serving(client)
    load.end()
    assert set(load.lost) <= {number for number, worker in enumerate(load.workers) if worker == 1}
    assert set(load.statuses) == {200}
    assert len(list_engines(server)) == 1


@pytest.mark.parametrize(
    ("fault", "status", "code", "reason"),
    [
        ("FAIL", 500, "inference_failed", ""),
        ("MEMORY", 503, "out_of_memory", ""),
        ("LOSE", 500, "inference_failed", '"exit code 3"'),
        ("CRASH", 503, "not_ready", "SIGSEGV"),
    ],
)
def test_failure_of_a_run_reaches_its_client_only(
    server: FaultyProcess, fault: str, status: int, code: str, reason: str
) -> None:
    with connect_to(server, 1) as client:
        answer = send_image(client, make_fault(fault))
        assert_problem(answer, status, code)
        assert "secret" not in answer.text
        if reason:
            server.wait_for_line(f"ERROR .*engine ended worker={ENGINE} reason={reason}")
            wait_until(lambda: len(list_engines(server)) == 2)
            wait_until(lambda: client.get("/readyz").status_code == 200)
        assert_still_serving(client)


def test_new_bundle_of_a_replaced_engine_replaces_the_workers(
    open_bundle: Bundle, tiny_bundle: Bundle, tmp_path: Path
) -> None:
    path = copy_bundle(open_bundle, tmp_path)
    with ServerProcess(*serve_command(path), "--label-store", "memory", *SHARED) as server:
        server.wait_for_line("serving url=")
        shutil.rmtree(path)
        shutil.copytree(tiny_bundle.path, path)
        os.kill(list_engines(server)[-1], signal.SIGKILL)
        wait_until(lambda: all(count_ready(server, worker) == 2 for worker in (1, 2)))
        with server.open_client() as client:
            assert client.get("/info").json()["model"]["name"] == tiny_bundle.card.name
            assert_still_serving(client)


def test_run_that_hangs_ends_the_engine(open_bundle: Bundle, tmp_path: Path) -> None:
    variables = {"FAULTS_RUN_SECONDS": "1.5", "ML_DECODER_DEADLINE_MS": "750"}
    with FaultyProcess(open_bundle, tmp_path, *SHARED, **variables) as server:
        server.wait_for_line("serving url=")
        with server.open_client() as client:
            assert_problem(send_image(client, make_fault("HOLD")), 504, "deadline_exceeded")
            server.wait_for_line(f'ERROR .*engine ended worker={ENGINE} reason="exit code 3"')
            server.release()
            wait_until(lambda: client.get("/readyz").status_code == 200)
            assert_still_serving(client)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_engine_ends_after_the_workers(open_bundle: Bundle, tmp_path: Path, stop: int) -> None:
    (files := tmp_path / "files").mkdir()
    with FaultyProcess(open_bundle, tmp_path, *SHARED, TMPDIR=str(files)) as server:
        server.wait_for_line("serving url=")
        load = Load(server, 4)
        wait_until(lambda: len(load.statuses) > 10)
        for pid in list_engines(server):  # as systemd does
            os.kill(pid, signal.SIGTERM)
        server.send_signal(signal.SIGTERM if stop == signal.SIGTERM else signal.SIGKILL)
        assert server.wait() == (0 if stop == signal.SIGTERM else -stop)
        load._ended.set()
        assert set(load.statuses) <= {200, 503}
    assert len(re.findall(r"draining seconds=20 worker=\d\n", server.stderr)) == 2
    wait_until(lambda: not list(files.glob("ml-decoder-*")))


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_service_that_ends_while_its_engine_loads_leaves_nothing(
    open_bundle: Bundle, tmp_path: Path, stop: int
) -> None:
    (files := tmp_path / "files").mkdir()
    with FaultyProcess(open_bundle, tmp_path, *SHARED, opens=False, TMPDIR=str(files)) as server:
        server.wait_for_line("engine started")
        server.send_signal(stop)
        server.open()
        assert server.wait() == (0 if stop == signal.SIGTERM else -stop)
    assert "ERROR" not in server.stderr
    wait_until(lambda: not list(files.glob("ml-decoder-*")))


def test_bad_start_of_the_engine_is_one_line(open_bundle: Bundle, tmp_path: Path) -> None:
    damaged = copy_bundle(open_bundle, tmp_path)
    flip_a_byte(damaged)
    started = time.monotonic()
    assert_start_fails(*serve_command(damaged), *SHARED, says="encoder")
    assert time.monotonic() - started < 20
