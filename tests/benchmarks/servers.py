"""Servers to measure: ours, and the peers that a folder holds.

In: a bundle, or a folder of peers (a `bench.py` that lists them, a virtual environment each). Out:
`Server`s that can be started, asked and stopped. Next: `serving.py`.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tests.benchmarks.load import Request

ROOT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 120.0
_BOUNDARY = "benchmark7f3a"
_MARK = "BENCHMARK_SERVER"
_PORTS_EACH = 20  # a peer may take some behind its own

FigureT = TypeVar("FigureT")


@dataclass(frozen=True)
class Server:
    """How to start a server and what to ask it.

    Attributes:
        name: for the table.
        command: with `{port}` where the port belongs.
        request: what to send.
        variables: environment, `{port}` filled in too.
        folder: working directory.
    """

    name: str
    command: tuple[str, ...]
    request: Request
    variables: Mapping[str, str] = field(default_factory=dict)
    folder: Path = ROOT


@dataclass(frozen=True)
class Running:
    """A server that answers.

    Attributes:
        address: `http://127.0.0.1:port`.
        cold_seconds: from its start to its first right answer.
        mark: what marks its processes.
    """

    address: str
    cold_seconds: float
    mark: str

    def pids(self) -> list[int]:
        """Returns its processes, daemons included."""
        return [process.pid for process in _find_marked(self.mark)]

    def rest(self) -> None:
        """Stops its processes: some servers look for work without a pause."""
        for process in _find_marked(self.mark):
            process.suspend()

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Lets processes that rest run within."""
        for process in _find_marked(self.mark):
            process.resume()
        try:
            yield
        finally:
            self.rest()

    def memory_mib(self) -> float:
        """Returns its memory: resident, shared pages counted once."""
        return float(sum(p.memory_full_info().pss for p in _find_marked(self.mark)) / 2**20)


def list_ours(bundle: Path, place: str, photo: bytes, name: str = "ours") -> Server:
    """Describes our own server, asked as curl -F does, for as many labels as the peers answer.

    Args:
        bundle: what it serves.
        place: precision, or device and precision; see `split_place`.
        photo: what it is asked about.
        name: for the table.
    """
    device, precision = split_place(place)
    command = (sys.executable, "-m", "service", "serve", "--port", "{port}", "--bundle",
               str(bundle.resolve()), "--precision", precision, "--label-store", "memory",
               "--device", device, "--log-level", "warning")  # fmt: skip
    return Server(name, command, replace(make_multipart(photo), path="/predict?top_k=10"))


def split_place(place: str) -> tuple[str, str]:
    """Returns device and precision of `openvino:bf16`; of `int8` alone, the device is the CPU."""
    device, _, precision = place.rpartition(":")
    return device or "cpu", precision


def make_multipart(photo: bytes) -> Request:
    """Makes the request that `curl -F image=@photo.jpg` sends."""
    body = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n'
        "Content-Type: image/jpeg\r\n\r\n"
    ).encode() + photo + f"\r\n--{_BOUNDARY}--\r\n".encode()  # fmt: skip
    return Request("/predict", body, {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"})


def list_peers(folder: Path, photo: Path, only: tuple[str, ...]) -> list[Server]:
    """Describes the peers of a folder whose virtual environments are there."""
    spec = importlib.util.spec_from_file_location("peers_bench", folder / "bench.py")
    assert spec is not None
    assert spec.loader is not None
    bench: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    bench.IMG = str(photo)
    (folder / "logs").mkdir(exist_ok=True)
    peers = []
    for peer in bench.SERVERS:
        program = Path(peer["cmd"][0])
        if program.exists() and (not only or peer["name"] in only):
            _, body, headers = bench.body_file(peer["body"], peer.get("field", "image"))
            variables = {**bench.DEFAULTS, **peer["env"]}
            where = Path(peer.get("cwd", bench.SRV))
            request = Request(peer["url"], body, headers)
            peers.append(Server(peer["name"], tuple(peer["cmd"]), request, variables, where))
    return peers


@contextlib.contextmanager
def run_server(server: Server, port: int) -> Iterator[Running]:
    """Starts a server, waits for its first right answer, and ends it with all its processes."""
    mark = uuid.uuid4().hex
    variables = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHONPATH", "OMP_"))},
        **{name: value.replace("{port}", str(port)) for name, value in server.variables.items()},
        **{_MARK: mark, "PORT": str(port)},
    }
    command = [part.replace("{port}", str(port)) for part in server.command]
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=server.folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not _answers(server.request, port):
            if process.poll() is not None:
                raise RuntimeError(f"{server.name} exited with {process.returncode}")
            if time.perf_counter() - started > _PATIENCE_SECONDS:
                raise RuntimeError(f"{server.name} does not answer")
            time.sleep(0.02)
        yield Running(f"http://127.0.0.1:{port}", time.perf_counter() - started, mark)
    finally:
        _end(mark)
        process.wait()


@contextlib.contextmanager
def run_servers(
    servers: Sequence[Server], first_port: int
) -> Iterator[list[tuple[Server, Running]]]:
    """Starts servers, all of which rest until they are woken; ends them as `run_server` does."""
    with contextlib.ExitStack() as stack:
        pairs = [
            (server, stack.enter_context(run_server(server, first_port + _PORTS_EACH * place)))
            for place, server in enumerate(servers)
        ]
        for _, running in pairs:
            running.rest()
        yield pairs


def take_turns(
    pairs: Sequence[tuple[Server, Running]], turns: int, ask: Callable[[Server, Running], FigureT]
) -> list[list[FigureT]]:
    """Asks servers that rest, one awake at a time; every other turn goes backwards.

    Returns:
        The figures of each server, one a turn.
    """
    figures: list[list[FigureT]] = [[] for _ in pairs]
    places = list(enumerate(pairs))
    for turn in range(turns):
        for place, (server, running) in places if turn % 2 else places[::-1]:
            with running.awake():
                figures[place].append(ask(server, running))
    return figures


def _answers(request: Request, port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", request.path, request.body, dict(request.headers))
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _find_marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == mark:
                found.append(process)
    return found


def _end(mark: str) -> None:
    for number, patience in ((signal.SIGTERM, 12.0), (signal.SIGKILL, 5.0)):
        processes = _find_marked(mark)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
                process.resume()  # one that rests does not hear
        psutil.wait_procs(processes, timeout=patience)
