"""Requests at ten times the rate that the service can answer.

    python -m tests.benchmarks.overload [--bundle BUNDLE]

Floods and peaks take turns, since machines change their speed. `wrk` makes the flood, with random
pauses; ten probes of this process measure latencies. Server and load have one half of the cores
each (`taskset`).
"""

import asyncio
import contextlib
import os
import time
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from urllib.parse import urlsplit

import numpy as np
import typer

from tests.benchmarks.load import Client, Load, Request, make_request, measure_load
from tests.benchmarks.servers import BUNDLE, PHOTO, Running, list_ours, run_server

OK, BUSY = 200, 429
_QUERY = "?label_set=trained&top_k=3"
TIMES = 10
# Enough to keep the queue from running empty, too few to fill it.
PEAK_CLIENTS = 16
PROBES, PROBE_PAUSE_SECONDS = 10, 0.1
FLOOD_PAUSE_SECONDS = 0.3
LONGEST_REFUSAL_SECONDS = 0.05

Answers = defaultdict[int, list[float]]
"""Status -> seconds of each answer."""


class Subject:
    def __init__(self, running: Running, photo: bytes) -> None:
        self.request = make_request(photo, _QUERY)
        self._running = running
        self._photo = photo

    async def connect(self) -> Client:
        url = urlsplit(self._running.address)
        return await Client.connect((str(url.hostname), int(url.port or 0)))

    def load(self, clients: int, seconds: float, pause_seconds: float = 0.0) -> Load:
        headers = {"Content-Type": "image/jpeg"}
        request = Request(f"/predict{_QUERY}", self._photo, headers, pause_seconds)
        pids = self._running.pids()
        return measure_load(self._running.address, request, clients, seconds, pids)

    async def probe(self, clients: int, pause_seconds: float, seconds: float) -> Answers:
        answers = Answers(list)

        async def ask() -> None:
            with contextlib.closing(await self.connect()) as client:
                while True:
                    status, taken = await client.ask(self.request)
                    answers[status].append(taken)
                    await asyncio.sleep(pause_seconds)

        asking = asyncio.gather(*(ask() for _ in range(clients)), return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asking, seconds)
        return answers

    async def recover(self, normal: float) -> float:
        """Returns the seconds until a lone request takes at most twice the normal time."""
        started = time.perf_counter()
        with contextlib.closing(await self.connect()) as client:
            while True:
                status, seconds = await client.ask(self.request)
                if status == OK and seconds <= 2 * normal:
                    return time.perf_counter() - started


async def run(subject: Subject, rounds: int, seconds: float, queue_size: int) -> bool:
    """Prints the figures; returns whether they are as they should be."""
    alone = await subject.probe(1, 0, 3)
    met = Answers(list)
    accepted, offered, recoveries = [], [], []
    peaks = [await asyncio.to_thread(subject.load, PEAK_CLIENTS, seconds)]
    for _ in range(rounds):
        clients = round(TIMES * peaks[-1].rate * FLOOD_PAUSE_SECONDS) + queue_size
        flood, probed = await asyncio.gather(
            asyncio.to_thread(subject.load, clients, seconds, FLOOD_PAUSE_SECONDS),
            subject.probe(PROBES, PROBE_PAUSE_SECONDS, seconds),
        )
        for status, taken in probed.items():
            met[status] += taken
        recoveries.append(await subject.recover(np.percentile(alone[OK], 95)))
        peaks.append(await asyncio.to_thread(subject.load, PEAK_CLIENTS, seconds))
        accepted.append(flood.rate + len(probed[OK]) / seconds)
        failed = flood.errors + len(probed[BUSY])
        offered.append(accepted[-1] + flood.refused + failed / seconds)
    around = [mean((before.rate, after.rate)) for before, after in pairwise(peaks)]
    shares = [own / peak for own, peak in zip(accepted, around, strict=True)]
    times = median(own / peak for own, peak in zip(offered, around, strict=True))
    bound, recovery = queue_size / median(around), max(recoveries)
    slowest, refusal = (float(np.percentile(met[status], 99)) for status in (OK, BUSY))
    others = sum(len(taken) for status, taken in met.items() if status not in {OK, BUSY})
    print(f"peak: {median(around):.0f} answers a second\noffered: {times:.1f} times the peak")
    print(f"accepted: {median(shares):.0%} of the peak ({min(shares):.0%}-{max(shares):.0%}); "
          f"other answers {others}")  # fmt: skip
    print(f"p99 of the accepted: {slowest:.2f} s, {slowest / bound:.2f} times the queue's own "
          f"{bound:.2f} s")  # fmt: skip
    print(f"time to refuse: median {np.percentile(met[BUSY], 50) * 1000:.1f} ms, "
          f"p99 {refusal * 1000:.1f} ms")  # fmt: skip
    print(f"back to normal after {recovery:.2f} s")
    in_time = slowest <= 2 * bound and refusal < LONGEST_REFUSAL_SECONDS and recovery <= 1
    return median(shares) >= 0.9 and in_time and others == 0


def split_cores(command: tuple[str, ...]) -> tuple[str, ...]:
    """Takes one half of the cores; returns the command that starts the server on the other."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    if not half:
        return command
    os.sched_setaffinity(0, cores[half:])
    return ("taskset", "--cpu-list", ",".join(map(str, cores[:half])), *command)


def main(
    *,
    bundle: Path = BUNDLE,
    photo: Path = PHOTO,
    rounds: int = 5,
    seconds: float = 6.0,
    queue_size: int = 64,
) -> None:
    """Measures accepted requests, refusals and recovery; exits with 1 if they are bad."""
    content = photo.read_bytes()
    server = list_ours(bundle, "auto", content)
    command = split_cores((*server.command, "--queue-size", str(queue_size)))
    with run_server(replace(server, command=command)) as running:
        good = asyncio.run(run(Subject(running, content), rounds, seconds, queue_size))
    raise typer.Exit(int(not good))


if __name__ == "__main__":
    typer.run(main)
