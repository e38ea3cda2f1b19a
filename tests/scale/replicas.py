"""Several replicas with one PostgreSQL, one nginx in front of them, and clients that load them."""

import itertools
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import httpx2 as httpx

from tests.e2e.server_process import ServerProcess
from tests.support.nginx import Nginx, deployed_site, find_free_port
from tests.support.photos import make_photo
from tests.support.threads import wait_until

TIMEOUT_SECONDS = 120.0


class Replicas:
    """Servers on fixed ports, so that the proxy finds a restarted one."""

    def __init__(self, bundle: Path, store: str, folder: Path, count: int) -> None:
        self._command = ("serve", "--bundle", str(bundle), "--device", "cpu")
        self._store = store
        self.ports = [find_free_port() for _ in range(count)]
        self.proxy = Nginx(folder, deployed_site(self.ports))
        self._servers = [self._start(port) for port in self.ports]
        for index in range(count):
            self.wait_until_ready(index)

    def open_client(self, index: int | None = None) -> httpx.Client:
        """Returns a client of one replica, or of the proxy."""
        port = self.proxy.port if index is None else self.ports[index]
        return httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_SECONDS)

    def wait_until_ready(self, index: int) -> None:
        self._servers[index].open_client().close()

    def kill(self, index: int) -> None:
        self._servers[index].send_signal(signal.SIGKILL)
        self._servers[index].wait()

    def stop(self, index: int) -> int:
        """Stops a replica by SIGTERM and returns its exit code."""
        return self._servers[index].stop()

    def start(self, index: int) -> None:
        self._servers[index] = self._start(self.ports[index])
        self.wait_until_ready(index)

    def close(self) -> None:
        self.proxy.stop()
        for server in self._servers:
            server.__exit__(None, None, None)

    def _start(self, port: int) -> ServerProcess:
        options = ("--port", str(port), "--label-store", self._store, "--intra-op-threads", "1")
        return ServerProcess(*self._command, *options)


class Load:
    """Clients that predict and register through the proxy until the block ends.

    Attributes:
        predicted: the status of each prediction; -1 for no answer.
        refused: registrations that were not acknowledged: status and name.
        acknowledged: names of the label sets whose registration was acknowledged.
    """

    def __init__(self, replicas: Replicas, prefix: str, predicting: int, registering: int) -> None:
        self.predicted: list[int] = []
        self.refused: list[tuple[int, str]] = []
        self.acknowledged: list[str] = []
        self._replicas = replicas
        self._prefix = prefix
        self._numbers = itertools.count()
        self._stopping = threading.Event()
        self._threads = ThreadPoolExecutor(predicting + registering)
        steps = [self._predict] * predicting + [self._register] * registering
        self._work = [self._threads.submit(self._run, step) for step in steps]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._threads.shutdown()
        for work in self._work:
            work.result()

    def wait_for_more(self, predictions: int, registrations: int) -> None:
        """Waits until this many more requests were answered."""
        for done, more in ((self.predicted, predictions), (self.acknowledged, registrations)):
            wanted = len(done) + more
            wait_until(lambda done=done, wanted=wanted: len(done) >= wanted, TIMEOUT_SECONDS)

    def _run(self, step: Callable[[httpx.Client, int], None]) -> None:
        with self._replicas.open_client() as client:
            while not self._stopping.is_set():
                step(client, next(self._numbers))

    def _predict(self, client: httpx.Client, number: int) -> None:
        self.predicted.append(_post(client, "/predict", files={"image": make_photo(number % 8)}))

    def _register(self, client: httpx.Client, number: int) -> None:
        name = f"{self._prefix}{number}"
        status = _post(client, "/labels", json={"name": name, "labels": [f"a {name}", "b"]})
        # 200: a killed replica had committed the first attempt.
        if status in (200, 201):
            self.acknowledged.append(name)
        else:
            self.refused.append((status, name))


def _post(client: httpx.Client, path: str, **content: Any) -> int:
    try:
        return client.post(path, **content).status_code
    except httpx.HTTPError:
        return -1
