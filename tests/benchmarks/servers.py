"""Servers to measure: this service from any checkout, and peers from a folder.

A folder of peers has a `bench.py` that lists them and a virtual environment for each.
"""

import contextlib
import http.client
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import psutil

from service.scheduling.cpu import count_cores
from tests.benchmarks.load import Request

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "bundles/ml-decoder-lite0"
PHOTO = ROOT / "docs/photos/chelsea.jpg"
_START_SECONDS = 120.0
_BOUNDARY = "benchmark7f3a"
_MARK = "BENCHMARK_SERVER"

FigureT = TypeVar("FigureT")


@dataclass(frozen=True)
class Server:
    """How to start a server and what to ask it; `{port}` is filled in."""

    name: str
    command: tuple[str, ...]
    request: Request
    variables: Mapping[str, str] = field(default_factory=dict)
    folder: Path = ROOT


@dataclass(frozen=True)
class Running:
    """A server at `http://127.0.0.1:port`, `cold_seconds` from start to first answer."""

    address: str
    cold_seconds: float
    mark: str  # in the environment of its processes

    def pids(self) -> list[int]:
        return [process.pid for process in _find_marked(self.mark)]

    def pause(self) -> None:
        """Stops its processes (SIGSTOP): some servers poll when idle."""
        for process in _find_marked(self.mark):
            process.suspend()

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        for process in _find_marked(self.mark):
            process.resume()
        try:
            yield
        finally:
            self.pause()

    def memory_mib(self) -> float:
        """Returns its resident memory, shared pages counted once."""
        return float(sum(p.memory_full_info().pss for p in _find_marked(self.mark)) / 2**20)


def list_ours(
    bundle: Path, precision: str, photo: bytes, name: str = "ours", checkout: Path = ROOT
) -> Server:
    """Describes our server in one process, asked like `curl -F` for the 10 best trained labels.

    `precision` may name a device too, as in `openvino:bf16`.
    """
    device, precision = split_device(precision)
    command = (find_python(checkout), "-m", "service.cli", "serve", "--port", "{port}",
               "--bundle", str(bundle.resolve()), "--precision", precision, "--device", device,
               "--label-store", "memory", "--log-level", "warning", "--workers", "1")  # fmt: skip
    request = replace(make_multipart(photo), path="/predict?label_set=trained&top_k=10")
    return Server(name, command, request, {"PYTHONPATH": str(checkout)}, checkout)


def list_variants(
    bundle: Path, precisions: Iterable[str], photo: bytes, workers: str
) -> list[Server]:
    """Describes our server with each precision and number of `workers` (commas between)."""
    servers = []
    for precision, count in product(precisions, workers.split(",")):
        ours = list_ours(bundle, precision, photo, f"ours {precision}, {count} workers")
        servers.append(replace(ours, command=(*ours.command, "--workers", count)))
    return servers


def split_device(precision: str) -> tuple[str, str]:
    """Splits `openvino:bf16`; the device is `cpu` if there is none."""
    device, _, precision = precision.rpartition(":")
    return device or "cpu", precision


def find_python(checkout: Path) -> str:
    """Returns the interpreter of a checkout's `.venv`, or this one."""
    own = checkout / ".venv/bin/python"
    return str(own) if own.exists() else sys.executable


def make_multipart(photo: bytes) -> Request:
    """Makes the request that `curl -F image=@photo.jpg` sends."""
    head = 'Content-Disposition: form-data; name="image"; filename="a.jpg"'
    body = f"--{_BOUNDARY}\r\n{head}\r\nContent-Type: image/jpeg\r\n\r\n".encode() + photo
    body += f"\r\n--{_BOUNDARY}--\r\n".encode()
    return Request("/predict", body, {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"})


def list_peers(folder: Path | None, photo: Path, only: str) -> list[Server]:
    """Describes the installed peers of a folder; `only` is names with commas between."""
    if folder is None:
        return []
    spec = importlib.util.spec_from_file_location("peers_bench", folder / "bench.py")
    assert spec is not None
    assert spec.loader is not None
    bench: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    bench.IMG = str(photo)
    # Two on two cores, where the peers were tuned.
    workers = str(max(2, count_cores() - 1))
    (folder / "logs").mkdir(exist_ok=True)
    peers = []
    for peer in bench.SERVERS:
        if Path(peer["cmd"][0]).exists() and (not only or peer["name"] in only.split(",")):
            _, body, headers = bench.body_file(peer["body"], peer.get("field", "image"))
            variables = {**bench.DEFAULTS, "WORKERS": workers, **peer["env"]}
            where = Path(peer.get("cwd", bench.SRV))
            request = Request(peer["url"], body, headers)
            peers.append(Server(peer["name"], tuple(peer["cmd"]), request, variables, where))
    return peers


@contextlib.contextmanager
def run_server(server: Server) -> Iterator[Running]:
    """Starts a server on a free port, waits for its first 200, and ends it with all processes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mark = uuid.uuid4().hex
    variables = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHONPATH", "OMP_"))},
        **{name: value.replace("{port}", str(port)) for name, value in server.variables.items()},
        **{_MARK: mark, "PORT": str(port)},
    }
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [part.replace("{port}", str(port)) for part in server.command],
            cwd=server.folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while not _answers(server.request, port):
                code = process.poll()
                if code is not None or time.perf_counter() - started > _START_SECONDS:
                    log.seek(0)
                    end = log.read()[-300:]
                    raise RuntimeError(f"{server.name} does not answer, exit status {code}: {end}")
                time.sleep(0.02)
            yield Running(f"http://127.0.0.1:{port}", time.perf_counter() - started, mark)
        finally:
            _end(mark)
            process.wait()


def compare_in_turns(
    servers: Sequence[Server],
    clients: str,
    turns: int,
    ask: Callable[[Server, Running, int], FigureT],
    show: Callable[[str, list[FigureT], list[FigureT]], None],
) -> None:
    """Shows figures of servers, and of the first one to compare, for each number of `clients`.

    Servers run all the time, paused but for the one that is asked. Every other turn goes backwards,
    and the first one, the warm-up, does not count.
    """
    with contextlib.ExitStack() as stack:
        places = [(place, server, stack.enter_context(run_server(server)))
                  for place, server in enumerate(servers)]  # fmt: skip
        for _, _, running in places:
            running.pause()
        for count in map(int, clients.split(",")):
            figures: list[list[FigureT]] = [[] for _ in servers]
            for turn in range(turns + 1):
                for place, server, running in places if turn % 2 else places[::-1]:
                    with running.resumed():
                        figures[place].append(ask(server, running, count))
            for server, own in zip(servers, figures, strict=True):
                show(f"{count} clients, {server.name}", own[1:], figures[0][1:])


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
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == mark:
                processes.append(process)
    return processes


def _end(mark: str) -> None:
    for number, timeout in ((signal.SIGTERM, 12.0), (signal.SIGKILL, 5.0)):
        processes = _find_marked(mark)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
                process.resume()  # a paused process receives no signal
        psutil.wait_procs(processes, timeout=timeout)
