"""Load on a server, by Debian's `wrk`.

Slices of load that other processes disturbed are repeated.
"""

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from service.scheduling.cpu import count_cores

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
refused = 0  -- of one thread
function response(status)
  if status == 429 then refused = refused + 1 end
end
local threads = {}
function setup(thread) table.insert(threads, thread) end
function done(summary, latency, requests)
  local errors, total = summary.errors, 0
  for _, thread in ipairs(threads) do total = total + thread:get("refused") end
  io.write(string.format("RESULT %d %d %.1f %.1f %d %d %d\\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), errors.status, total,
    errors.connect + errors.read + errors.write + errors.timeout))
end
"""
# The server finishes the queue of the last load first.
_SETTLE_SECONDS = 0.8
_MOST_FOREIGN_CORES = 0.1


@dataclass(frozen=True)
class Request:
    """A POST request; each client waits `pause_seconds` on average before it sends one."""

    path: str
    body: bytes
    headers: Mapping[str, str]
    pause_seconds: float = 0.0


@dataclass(frozen=True)
class Load:
    rate: float  # 2xx answers per second
    p50_ms: float
    p99_ms: float
    refused: float  # 429 answers per second; the latencies are of these too
    errors: int  # other answers and broken connections
    foreign_cores: float  # used by processes that are neither server nor load
    limit: float = 0.0  # of the machine meanwhile, photos per second, if measured


def describe_loads(loads: Sequence[Load]) -> str:
    """Returns medians: requests/s with quartiles, p50/p99 ms, and refusals if there are any."""
    low, rate, high = np.percentile([load.rate for load in loads], [25, 50, 75])
    p50, p99, refused = (
        statistics.median(getattr(load, name) for load in loads)
        for name in ("p50_ms", "p99_ms", "refused")
    )
    quartiles = f" ({low:.0f}-{high:.0f})" if len(loads) > 1 else ""
    refusals = f", {refused:.0f}/s refused" if refused else ""
    return f"{rate:.0f}/s{quartiles}, {p50:.1f}/{p99:.1f} ms{refusals}"


def measure_load(
    address: str, request: Request, clients: int, seconds: float, server: Iterable[int]
) -> Load:
    """Sends `request` from `clients` connections to `http://host:port`; `server` are its pids."""
    with tempfile.TemporaryDirectory() as folder:
        script, body = Path(folder, "post.lua"), Path(folder, "body")
        script.write_text(_SCRIPT)
        body.write_bytes(request.body)
        variables = {
            **os.environ,
            "LOAD_BODY": str(body),
            "LOAD_HEADERS": "".join(f"{key}\t{value}\n" for key, value in request.headers.items()),
            "LOAD_PAUSE_MS": str(round(request.pause_seconds * 1000)),
        }
        # One thread is enough for 8 clients.
        threads = max(1, min(clients // 8, count_cores() // 4))
        command = ["wrk", f"-t{threads}", f"-c{clients}",
                   f"-d{max(1, round(seconds))}s", "--timeout", "30s", "-s", str(script),
                   address + request.path]  # fmt: skip
        time.sleep(_SETTLE_SECONDS)
        processes = find_processes(server)
        started, total = time.perf_counter(), _machine_seconds()
        ours = _own_seconds() + busy_seconds(processes)
        wrk = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=seconds + 90
        )
        ours = _own_seconds() + busy_seconds(processes) - ours
        foreign = (_machine_seconds() - total - ours) / (time.perf_counter() - started)
    if wrk.returncode:
        raise RuntimeError(f"{address}{request.path}: {(wrk.stderr or wrk.stdout).strip()}")
    (line,) = (line for line in wrk.stdout.splitlines() if line.startswith("RESULT"))
    requests, micros, p50, p99, failed, refused, broken = map(float, line.split()[1:])
    ran, errors = micros / 1e6, int(failed - refused + broken)
    rate = (requests - failed) / ran
    return Load(rate, p50 / 1e3, p99 / 1e3, refused / ran, errors, max(0.0, foreign))


def find_processes(pids: Iterable[int]) -> list[psutil.Process]:
    processes = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    return processes


def busy_seconds(processes: Iterable[psutil.Process]) -> float:
    """Returns the processor time of processes so far; 0 for one that has ended."""
    seconds = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:2])
    return seconds


def _own_seconds() -> float:
    return float(sum(psutil.Process().cpu_times()[:4]))  # with those of ended children


def _machine_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times[:8]) - times.idle - times.iowait)


def measure_quietly(measure: Callable[[], Load], tries: int = 4) -> Load:
    """Repeats a slice until no other process disturbs it; returns the quietest."""
    slices: list[Load] = []
    while len(slices) < tries:
        slices.append(measure())
        if slices[-1].foreign_cores <= _MOST_FOREIGN_CORES:
            break
    return min(slices, key=lambda load: load.foreign_cores)


def count_a_second(work: Callable[[], object], threads: int, seconds: float) -> float:
    work()
    started = time.perf_counter()
    counts = [0] * threads

    def loop(index: int) -> None:
        while time.perf_counter() < started + seconds:
            work()
            counts[index] += 1

    with ThreadPoolExecutor(threads) as running:
        list(running.map(loop, range(threads)))
    return sum(counts) / (time.perf_counter() - started)


def median_seconds(work: Callable[[], object], seconds: float) -> float:
    work()
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(taken) < 3:
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)
