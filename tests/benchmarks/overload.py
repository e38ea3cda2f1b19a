"""Requests at ten times the rate that the service can answer.

    python -m tests.benchmarks.overload [--bundle BUNDLE]

Prints the rate of accepted requests beside the peak, their 99th percentile, the time to refuse and
the time to recover; exits with 1 if one is worse than it should be. Floods and peaks take turns,
since machines change their speed. `wrk` makes the flood, with random pauses; ten probes of this
process measure latencies. Server and load have one half of the cores each (`taskset`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import typer

from tests.benchmarks.load import Client, Load, Request, make_request, measure_load, percentile
from tests.benchmarks.servers import BUNDLE, PHOTO, Running, list_ours, run_server

OK, BUSY = 200, 429
TIMES = 10
# Enough to keep the queue from running empty, too few to fill it.
PEAK_CLIENTS = 16
PROBES = 10
PROBE_PAUSE_SECONDS = 0.1
FLOOD_PAUSE_SECONDS = 0.3
LONGEST_REFUSAL_SECONDS = 0.05


@dataclass
class Tally:
    """Seconds of the answers, by status."""

    accepted: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    others: int = 0

    def add(self, status: int, seconds: float) -> None:
        if status == OK:
            self.accepted.append(seconds)
        elif status == BUSY:
            self.refused.append(seconds)
        else:
            self.others += 1


class Subject:
    """A server and the photo to send."""

    def __init__(self, running: Running, photo: bytes) -> None:
        self.request = make_request(photo, "?top_k=3")
        self._running = running
        self._photo = photo

    async def connect(self) -> Client:
        url = urlsplit(self._running.address)
        assert url.hostname is not None
        assert url.port is not None
        return await Client.connect((url.hostname, url.port))

    def load(self, clients: int, seconds: float, pause_seconds: float = 0.0) -> Load:
        headers = {"Content-Type": "image/jpeg"}
        request = Request("/predict?top_k=3", self._photo, headers, pause_seconds)
        pids = self._running.pids()
        return measure_load(self._running.address, request, clients, seconds, pids)

    async def probe(self, tally: Tally, clients: int, pause_seconds: float, seconds: float) -> None:
        """Adds to `tally` the answers that a few clients get within so many seconds."""

        async def ask() -> None:
            with contextlib.closing(await self.connect()) as client:
                while True:
                    tally.add(*await client.ask(self.request))
                    await asyncio.sleep(pause_seconds)

        asking = asyncio.gather(*(ask() for _ in range(clients)), return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asking, seconds)

    async def recover(self, normal: float) -> float:
        """Returns the seconds until a lone request takes at most twice the normal time."""
        started = time.perf_counter()
        with contextlib.closing(await self.connect()) as client:
            while True:
                status, seconds = await client.ask(self.request)
                if status == OK and seconds <= 2 * normal:
                    return time.perf_counter() - started


@dataclass(frozen=True)
class Round:
    """Requests per second of a flood, and the `peak`, the mean of the slices around it."""

    peak: float
    accepted: float
    offered: float


async def run(subject: Subject, rounds: int, seconds: float, queue_size: int) -> bool:
    """Prints the figures; returns whether they are as they should be."""
    alone, tally = Tally(), Tally()
    await subject.probe(alone, 1, 0, 3)
    measured: list[Round] = []
    recoveries: list[float] = []
    before = await asyncio.to_thread(subject.load, PEAK_CLIENTS, seconds)
    for _ in range(rounds):
        clients = round(TIMES * before.rate * FLOOD_PAUSE_SECONDS) + queue_size
        met = Tally()
        flood, _ = await asyncio.gather(
            asyncio.to_thread(subject.load, clients, seconds, FLOOD_PAUSE_SECONDS),
            subject.probe(met, PROBES, PROBE_PAUSE_SECONDS, seconds),
        )
        tally.accepted += met.accepted
        tally.refused += met.refused
        tally.others += met.others
        recoveries.append(await subject.recover(percentile(alone.accepted, 95)))
        after = await asyncio.to_thread(subject.load, PEAK_CLIENTS, seconds)
        accepted = flood.rate + len(met.accepted) / seconds
        offered = accepted + (flood.errors + len(met.refused)) / seconds
        measured.append(Round((before.rate + after.rate) / 2, accepted, offered))
        before = after
    bound = queue_size / median(each.peak for each in measured)
    return report(measured, tally, max(recoveries), bound)


def report(rounds: list[Round], tally: Tally, recovery: float, bound: float) -> bool:
    """Prints the figures; returns whether they are as they should be."""
    shares = [each.accepted / each.peak for each in rounds]
    slowest, refusal = percentile(tally.accepted, 99), percentile(tally.refused, 99)
    print(f"peak: {median(each.peak for each in rounds):.0f} answers a second")
    print(f"offered: {median(each.offered / each.peak for each in rounds):.1f} times the peak")
    print(f"accepted: {median(shares):.0%} of the peak ({min(shares):.0%}-{max(shares):.0%}); "
          f"other answers {tally.others}")  # fmt: skip
    print(f"p99 of the accepted: {slowest:.2f} s, {slowest / bound:.2f} times the queue's own "
          f"{bound:.2f} s")  # fmt: skip
    print(f"time to refuse: median {percentile(tally.refused, 50) * 1000:.1f} ms, "
          f"p99 {refusal * 1000:.1f} ms")  # fmt: skip
    print(f"back to normal after {recovery:.2f} s")
    in_time = slowest <= 2 * bound and refusal < LONGEST_REFUSAL_SECONDS and recovery <= 1
    return median(shares) >= 0.9 and in_time and tally.others == 0


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
    """Measures the service under overload."""
    content = photo.read_bytes()
    server = list_ours(bundle, "auto", content)
    command = split_cores((*server.command, "--queue-size", str(queue_size)))
    with run_server(replace(server, command=command)) as running:
        good = asyncio.run(run(Subject(running, content), rounds, seconds, queue_size))
    sys.exit(not good)


if __name__ == "__main__":
    typer.run(main)
