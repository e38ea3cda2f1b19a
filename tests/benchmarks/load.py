"""Load on a server: `wrk` sends one request again and again, and the cores are watched.

In: an address, a request and a number of clients. Out: a `Load`: rate, latencies, errors, and how
many cores others used meanwhile. Needs Debian's `wrk`. Next: `serving.py`, `bulk.py`.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

_SCRIPT = """
local file = assert(io.open(os.getenv("LOAD_BODY"), "rb"))
wrk.method, wrk.body = "POST", file:read("*a")
file:close()
for name, value in string.gmatch(os.getenv("LOAD_HEADERS"), "([^\\t]+)\\t([^\\n]+)\\n") do
  wrk.headers[name] = value
end
local pause = tonumber(os.getenv("LOAD_PAUSE_MS"))
if pause > 0 then
  function delay() return math.random(0, 2 * pause) end
end
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format("RESULT %d %d %.1f %.1f %d %d\\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), errors.status,
    errors.connect + errors.read + errors.write + errors.timeout))
end
"""
# What the last load left in the server's queue is answered first.
_SETTLE_SECONDS = 0.8
_MOST_FOREIGN_CORES = 0.1

TRIES = 4
"""Slices that are worth measuring in the hope of a quiet one."""

SliceT = TypeVar("SliceT")


@dataclass(frozen=True)
class Request:
    """A request to send.

    Attributes:
        path: with the query.
        body: bytes.
        headers: name -> value.
        pause_seconds: mean of the time that a client waits before it sends one, at random.
    """

    path: str
    body: bytes
    headers: Mapping[str, str]
    pause_seconds: float = 0.0


@dataclass(frozen=True)
class Load:
    """What one slice of load showed.

    Attributes:
        rate: good answers a second.
        p50_ms: median latency.
        p99_ms: 99th percentile of the latency.
        errors: answers that were not 2xx, and broken connections.
        foreign_cores: cores that processes used which are neither server nor load.
    """

    rate: float
    p50_ms: float
    p99_ms: float
    errors: int
    foreign_cores: float


def measure_load(
    address: str, request: Request, clients: int, seconds: float, server: Iterable[int]
) -> Load:
    """Sends `request` from `clients` connections for `seconds`.

    Args:
        address: `http://host:port`.
        request: what to send.
        clients: connections, each with one request at a time.
        seconds: how long.
        server: process ids of the server.

    Raises:
        RuntimeError: nobody answers there.
    """
    with tempfile.TemporaryDirectory() as folder:
        script, body = Path(folder, "post.lua"), Path(folder, "body")
        script.write_text(_SCRIPT)
        body.write_bytes(request.body)
        headers = "".join(f"{name}\t{value}\n" for name, value in request.headers.items())
        command = ["wrk", "-t1", f"-c{clients}", f"-d{max(1, round(seconds))}s", "--timeout", "30s",
                   "-s", str(script), address + request.path]  # fmt: skip
        time.sleep(_SETTLE_SECONDS)
        meter = CoreMeter(server)
        wrk = subprocess.run(
            command,
            env={
                "LOAD_BODY": str(body),
                "LOAD_HEADERS": headers,
                "LOAD_PAUSE_MS": str(round(request.pause_seconds * 1000)),
                "PATH": "/usr/bin:/bin",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds + 90,
        )
        foreign = meter.foreign_cores()
    if wrk.returncode:
        raise RuntimeError(f"{address}{request.path}: {(wrk.stderr or wrk.stdout).strip()}")
    (line,) = (line for line in wrk.stdout.splitlines() if line.startswith("RESULT"))
    total, micros, p50, p99, refused, broken = map(float, line.split()[1:])
    rate = (total - refused) / (micros / 1e6)
    return Load(rate, p50 / 1e3, p99 / 1e3, int(refused + broken), foreign)


class CoreMeter:
    """Measures from its making on how many cores other processes use."""

    def __init__(self, server: Iterable[int] = ()) -> None:
        """Counts the server's processes, this one and its children as ours."""
        self._server = list(_find(server))
        self._started = time.perf_counter()
        self._total, self._ours = _machine_seconds(), self._own_seconds()

    def foreign_cores(self) -> float:
        """Returns the mean number of cores that others used so far."""
        busy = _machine_seconds() - self._total
        others = busy - (self._own_seconds() - self._ours)
        return max(0.0, others / (time.perf_counter() - self._started))

    def _own_seconds(self) -> float:
        own = psutil.Process().cpu_times()
        ours = own.user + own.system + own.children_user + own.children_system
        return float(ours) + busy_seconds(self._server)


def _find(pids: Iterable[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def busy_seconds(processes: Iterable[psutil.Process]) -> float:
    """Returns the processor time that processes have taken so far; one that has ended, none."""
    seconds = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # a helper that some servers start now and then
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


def _machine_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times[:8]) - times.idle - times.iowait)


def take_quietest(slices: Iterable[SliceT], load_of: Callable[[SliceT], Load]) -> SliceT:
    """Returns the first slice in which others left the machine alone, or the quietest of all.

    Args:
        slices: measured one after the other, as they are asked for.
        load_of: the load of a slice.
    """
    taken = []
    for each in slices:
        taken.append(each)
        if load_of(each).foreign_cores <= _MOST_FOREIGN_CORES:
            break
    return min(taken, key=lambda each: load_of(each).foreign_cores)
