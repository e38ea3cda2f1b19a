"""Several workers on one port: killed under load, stopped, unable to start; with one log."""

import itertools
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.e2e.test_metrics import read_value
from tests.faults.conftest import serve
from tests.faults.faulty_process import FaultyProcess
from tests.faults.faulty_server import make_fault
from tests.faults.test_load import occupy
from tests.faults.test_start import flip_a_byte
from tests.support.serving import assert_problem, assert_still_serving, send_image
from tests.support.threads import wait_until
from tests.support.tiny_bundle import copy_bundle

TWO = ("--workers", "2")


def list_pids(server: ServerProcess, worker: int) -> list[int]:
    """Returns the processes that were this worker, the newest last."""
    return [int(pid) for pid in re.findall(rf"started worker={worker} pid=(\d+)", server.stderr)]


def count_ready(server: ServerProcess, worker: int) -> int:
    return len(re.findall(rf"ready model=.* worker={worker}\n", server.stderr))


_ids = itertools.count()


def find_worker(server: ServerProcess, client: httpx.Client) -> int:
    """Returns the worker that a client's connection is to."""
    request_id = f"who-{next(_ids)}"
    client.get("/livez", headers={"X-Request-ID": request_id})
    return int(server.wait_for_line(rf"request_id={request_id} worker=(\d)")[1])


@contextmanager
def connect_to(server: ServerProcess, worker: int) -> Iterator[httpx.Client]:
    """Yields a client with one connection, to this worker."""
    while True:
        client = server.connect(*server.find_address())
        with suppress(httpx.ConnectError):  # none listens yet
            if find_worker(server, client) == worker:
                break
        client.close()
    try:
        yield client
    finally:
        client.close()


class Load:
    """Clients of one connection each, which send photos until the end; `lost` has each failure."""

    def __init__(self, server: ServerProcess, clients: int) -> None:
        self.lost: list[int] = []
        self.statuses: list[int] = []
        self._ended = threading.Event()
        self._server = server
        self._threads = ThreadPoolExecutor(clients)
        first = [server.connect(*server.find_address()) for _ in range(clients)]
        self.workers = [find_worker(server, client) for client in first]
        self._sending = [
            self._threads.submit(self._send, number, client) for number, client in enumerate(first)
        ]

    def _send(self, number: int, client: httpx.Client) -> None:
        while not self._ended.is_set():
            try:
                self.statuses.append(send_image(client).status_code)
            except httpx.TransportError:
                self.lost.append(number)
                client.close()
                client = self._server.connect(*self._server.find_address())
        client.close()

    def end(self) -> None:
        self._ended.set()
        for each in self._sending:
            each.result()
        self._threads.shutdown()


@pytest.fixture(scope="module")
def two(open_bundle: Bundle) -> Iterator[ServerProcess]:
    """Two workers that all live until the end."""
    with serve(open_bundle, *TWO, "--metrics-port", "0") as (server, _):
        server.wait_for_line("serving url=")
        yield server
        assert server.stop() == 0
    assert "Traceback" not in server.stderr


@pytest.fixture(scope="module")
def faulty(
    open_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultyProcess]:
    """Two workers of which a test may end the first."""
    with FaultyProcess(open_bundle, tmp_path_factory.mktemp("faults"), *TWO) as server:
        server.wait_for_line("serving url=")
        yield server
        assert server.stop() == 0


@contextmanager
def ends_worker_1(server: ServerProcess) -> Iterator[Callable[[], None]]:
    """The test ends worker 1; its replacement answers. Yields a function that waits for it."""
    count = count_ready(server, 1) + 1

    def wait() -> None:
        wait_until(lambda: count_ready(server, 1) == count)

    yield wait
    wait()
    with connect_to(server, 1) as client:
        assert client.get("/readyz").status_code == 200
        assert_still_serving(client)


def kill(server: ServerProcess, worker: int) -> None:
    os.kill(list_pids(server, worker)[-1], signal.SIGKILL)


def test_killed_worker_loses_only_its_own_requests_and_no_label_set(faulty: FaultyProcess) -> None:
    with connect_to(faulty, 2) as client:
        load = Load(faulty, 8)
        for number in range(3):
            registered = client.post("/labels", json={"name": f"set{number}", "labels": ["a", "b"]})
            assert registered.status_code == 201
        wait_until(lambda: len(load.statuses) > 20)
        with ends_worker_1(faulty) as wait:
            kill(faulty, 1)
            faulty.wait_for_line("ERROR .*worker ended worker=1 reason=SIGKILL")
            wait()
        answered = len(load.statuses)
        wait_until(lambda: len(load.statuses) > answered + 20)
        load.end()

        own = {number for number, worker in enumerate(load.workers) if worker == 1}
        assert set(load.lost) <= own
        assert len(load.lost) == len(set(load.lost))
        assert set(load.statuses) == {200}
        for worker in (1, 2):
            with connect_to(faulty, worker) as each:
                listed = each.get("/labels").json()["label_sets"]
                assert {"set0", "set1", "set2"} <= {label_set["name"] for label_set in listed}
                assert read_value(each, "ml_decoder_ready") == 1
                # Without those of the killed worker, but with this scrape.
                wait_until(lambda each=each: read_value(each, "ml_decoder_requests_in_flight") == 1)


def test_metrics_port_answers_for_all_workers(two: ServerProcess) -> None:
    address = two.wait_for_line(r"metrics address=(\S+) port=(\d+)")
    for worker in (1, 2):
        with connect_to(two, worker) as client:
            assert_still_serving(client)
            assert client.get("/metrics").status_code == 404
    for _ in range(4):
        with httpx.Client(base_url=f"http://{address[1]}:{address[2]}") as scraper:
            assert read_value(scraper, "ml_decoder_inference_seconds_count") == 2


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="there is one core only",
)
def test_each_worker_has_cores_of_its_own(two: ServerProcess) -> None:
    first, second = (os.sched_getaffinity(list_pids(two, n)[-1]) for n in (1, 2))
    assert not first & second
    assert first | second == os.sched_getaffinity(0)


def test_service_is_ready_and_answers_while_a_worker_starts_again(faulty: FaultyProcess) -> None:
    starts = len(list_pids(faulty, 1))
    with ends_worker_1(faulty):
        faulty.shut()
        kill(faulty, 1)
        wait_until(lambda: len(list_pids(faulty, 1)) > starts)
        for _ in range(10):
            with faulty.connect(*faulty.find_address()) as client:
                assert client.get("/readyz").status_code == 200
                assert find_worker(faulty, client) == 2
                assert_still_serving(client)
        faulty.open()


def test_broken_model_ends_its_worker_only(faulty: FaultyProcess) -> None:
    with ends_worker_1(faulty), connect_to(faulty, 1) as client:
        send_image(client, make_fault("LOSE"))
        faulty.wait_for_line("worker ended worker=1 reason=.*the batcher died")
        assert "the engine fails on every batch" in faulty.stderr


def test_photo_that_crashed_a_worker_cannot_end_another(faulty: FaultyProcess) -> None:
    crash = make_fault("CRASH")
    with ends_worker_1(faulty), connect_to(faulty, 1) as first, connect_to(faulty, 2) as second:
        with pytest.raises(httpx.TransportError):
            send_image(first, crash)
        refused = send_image(second, crash)
        assert_problem(refused, 429, "photo_suspected")
        assert refused.headers["retry-after"] == "10"
        batch = second.post(
            "/predict/batch", files=[("images", crash), ("images", make_fault("MEMORY")[:9])]
        )
        codes = [each["error"]["code"] for each in batch.json()["results"]]
        assert codes == ["photo_suspected", "invalid_image"]
        ended = faulty.wait_for_line("ERROR .*worker ended worker=1 reason=SIGSEGV.*")
        assert "refused_photos=1" in ended[0]
        assert "Fatal Python error: Segmentation fault" in ended[0]


def test_start_is_ready_when_its_last_worker_is(open_bundle: Bundle, tmp_path: Path) -> None:
    order = (2, 3, 1)
    with FaultyProcess(open_bundle, tmp_path, "--workers", "3", opens=False) as server:
        server.wait_for_line("started worker=3")
        with connect_to(server, 1) as probe:  # it listens while all load
            assert probe.get("/livez").status_code == 200
            assert_problem(probe.get("/readyz"), 503, "not_ready")
        server.open(order[0])
        server.open(order[1])
        for worker in order[:2]:
            with connect_to(server, worker) as client:
                wait_until(lambda worker=worker: count_ready(server, worker) == 1)
                assert_problem(client.get("/readyz"), 503, "not_ready")
                assert client.get("/v2/health/ready").status_code == 503
        server.open(order[2])
        with connect_to(server, order[0]) as client:
            wait_until(lambda: client.get("/readyz").status_code == 200)
        for worker in order:
            with connect_to(server, worker) as client:
                assert client.get("/readyz").status_code == 200
                assert_still_serving(client)


@pytest.mark.parametrize("signals", [("all", 1), ("supervisor", 2)], ids=str)
def test_sigterm_drains_every_worker_and_a_second_one_fails_their_requests(
    open_bundle: Bundle, tmp_path: Path, signals: tuple[str, int]
) -> None:
    to, count = signals
    with FaultyProcess(open_bundle, tmp_path, *TWO) as server, ThreadPoolExecutor(2) as clients:
        server.wait_for_line("serving url=")
        with connect_to(server, 1) as first, connect_to(server, 2) as second:
            held = [occupy(server, client, clients) for client in (first, second)]
            if to == "all":  # as systemd does
                for worker in (1, 2):
                    os.kill(list_pids(server, worker)[-1], signal.SIGTERM)
            server.send_signal(signal.SIGTERM)
            for worker in (1, 2):
                server.wait_for_line(rf"draining seconds=300 worker={worker}\n")
            with server.connect(*server.find_address()) as late:
                assert_problem(send_image(late), 503, "draining")
            if count == 2:
                server.send_signal(signal.SIGTERM)
            else:
                server.release()
            codes = [each.result().status_code for each in held]
            assert codes == ([503, 503] if count == 2 else [200, 200])
        server.release()
        assert server.wait() == 0
    assert count == 2 or "ERROR" not in server.stderr


def test_workers_end_with_their_supervisor_and_remove_its_files(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    with FaultyProcess(open_bundle, tmp_path, *TWO, TMPDIR=str(tmp_path)) as server:
        server.wait_for_line("serving url=")
        assert list(tmp_path.glob("ml-decoder-*/labels.db"))
        server.shut()
        kill(server, 1)
        wait_until(lambda: len(list_pids(server, 1)) == 2)
        server.send_signal(signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{list_pids(server, 2)[0]}/exe"))
        assert list(tmp_path.glob("ml-decoder-*/labels.db"))  # of the worker that starts
        server.open()
        assert server.wait() == -signal.SIGKILL  # stderr is closed when the workers have ended too
        assert len(re.findall(r"draining seconds=300 worker=\d\n", server.stderr)) == 2
        assert "Traceback" not in server.stderr
        assert not list(tmp_path.glob("ml-decoder-*"))


def test_replacement_that_cannot_start_is_tried_again_while_others_serve(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    path = copy_bundle(open_bundle, tmp_path)
    with ServerProcess(*serve_command(path), "--label-store", "memory", *TWO) as server:
        server.wait_for_line("serving url=")
        content = {file: file.read_bytes() for file in path.iterdir()}
        flip_a_byte(path)
        kill(server, 1)
        server.wait_for_line(r"(?s)reason=SIGKILL.*worker ended worker=1 reason=.*encoder")
        with server.connect(*server.find_address()) as client:
            assert client.get("/readyz").status_code == 200
            assert_still_serving(client)
        for file, right in content.items():
            file.write_bytes(right)
        wait_until(lambda: count_ready(server, 1) == 2)
        flip_a_byte(path)
        for worker in (1, 2):
            kill(server, worker)
        assert server.wait() == 3
        assert server.stderr.splitlines()[-1].startswith("ml-decoder: no worker can start: ")


def test_crash_of_a_single_process_is_the_last_line_of_its_log(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    with FaultyProcess(open_bundle, tmp_path) as server, server.open_client() as client:
        assert_still_serving(client)
        with pytest.raises(httpx.TransportError):
            send_image(client, make_fault("CRASH"))
        assert server.wait() == -signal.SIGSEGV
    logged = server.stderr.rpartition("request ")[2]
    assert "Fatal Python error: Segmentation fault" in logged
    assert 'faulty_server.py", line' in logged


def test_bad_start_of_workers_is_one_line(open_bundle: Bundle, tmp_path: Path) -> None:
    damaged = copy_bundle(open_bundle, tmp_path)
    flip_a_byte(damaged)
    with ServerProcess(*serve_command(damaged, *TWO, "--log-level", "error")) as server:
        assert server.wait() == 2
    assert re.fullmatch("ml-decoder: .*encoder.*\n", server.stderr)
