"""Ten times more requests than the service can answer: what happens to those it takes.

    python -m tests.benchmarks.overload [--bundle BUNDLE]

In: a bundle; Debian's `wrk`. Out: under overload the rate of accepted requests beside the peak,
their 99th percentile, the time to refuse, and how soon all is as before. Floods and peaks take
turns, since machines are faster in one minute than in the next. `wrk` makes the flood, whose
connections wait at random between their requests; a few clients of this process ask among it and
take the times. The server has one half of the cores and all of that the other, as in a world
where clients have machines of their own; `taskset` sees to it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from tests.benchmarks.asking import Client, make_request, percentile
from tests.benchmarks.load import Load, Request, measure_load
from tests.benchmarks.servers import Running, list_ours, run_server

OK, BUSY = 200, 429
TIMES = 10
PORT = 18900
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
    """A server, and the photo that it is asked about."""

    def __init__(self, running: Running, photo: bytes) -> None:
        self.request = make_request(photo, "?top_k=3")
        self._running = running
        self._photo = photo

    @property
    def address(self) -> tuple[str, int]:
        url = urlsplit(self._running.address)
        assert url.hostname is not None
        assert url.port is not None
        return url.hostname, url.port

    def load(self, clients: int, seconds: float, pause_seconds: float = 0.0) -> Load:
        headers = {"Content-Type": "image/jpeg"}
        request = Request("/predict?top_k=3", self._photo, headers, pause_seconds)
        pids = self._running.pids()
        return measure_load(self._running.address, request, clients, seconds, pids)

    async def probe(self, tally: Tally, pause_seconds: float) -> None:
        """Asks now and then until it is cancelled."""
        client = await Client.connect(self.address)
        with contextlib.closing(client):
            while True:
                tally.add(*await client.ask(self.request))
                await asyncio.sleep(pause_seconds)


async def probe_for(subject: Subject, clients: int, pause_seconds: float, seconds: float) -> Tally:
    """Returns what a few clients met within so many seconds."""
    tally = Tally()
    probes = [asyncio.create_task(subject.probe(tally, pause_seconds)) for _ in range(clients)]
    await asyncio.sleep(seconds)
    for probe in probes:
        probe.cancel()
    await asyncio.wait(probes)
    return tally


async def measure_recovery(subject: Subject, normal: float) -> float:
    """Returns the seconds until a lone request takes no longer than twice the normal time."""
    client, started = await Client.connect(subject.address), time.perf_counter()
    with contextlib.closing(client):
        while True:
            status, seconds = await client.ask(subject.request)
            if status == OK and seconds <= 2 * normal:
                return time.perf_counter() - started


@dataclass(frozen=True)
class Round:
    """A flood between two slices without one.

    Attributes:
        peak: answers a second without a flood, mean of before and after.
        accepted: good answers a second under the flood.
        offered: requests a second under the flood.
    """

    peak: float
    accepted: float
    offered: float

    @property
    def share(self) -> float:
        """The accepted, as a share of the peak."""
        return self.accepted / self.peak


async def measure_flood(subject: Subject, clients: int, seconds: float, tally: Tally) -> Load:
    """Returns what a flood and the probes among it met, whose answers go to `tally`."""
    flooding = asyncio.to_thread(subject.load, clients, seconds, FLOOD_PAUSE_SECONDS)
    flood, met = await asyncio.gather(
        flooding, probe_for(subject, PROBES, PROBE_PAUSE_SECONDS, seconds)
    )
    tally.accepted += met.accepted
    tally.refused += met.refused
    tally.others += met.others
    rate = flood.rate + len(met.accepted) / seconds
    errors = flood.errors + len(met.refused)
    return replace(flood, rate=rate, errors=errors)


async def run(subject: Subject, rounds: int, seconds: float, queue_size: int) -> bool:
    """Prints the figures; returns whether they are as they should be."""
    alone = await probe_for(subject, 1, 0, 3)
    measured: list[Round] = []
    recoveries: list[float] = []
    tally = Tally()
    before = await asyncio.to_thread(subject.load, PEAK_CLIENTS, seconds)
    for _ in range(rounds):
        clients = round(TIMES * before.rate * FLOOD_PAUSE_SECONDS) + queue_size
        flood = await measure_flood(subject, clients, seconds, tally)
        recoveries.append(await measure_recovery(subject, percentile(alone.accepted, 95)))
        after = await asyncio.to_thread(subject.load, PEAK_CLIENTS, seconds)
        peak = (before.rate + after.rate) / 2
        measured.append(Round(peak, flood.rate, flood.rate + flood.errors / seconds))
        before = after
    bound = queue_size / median(each.peak for each in measured)
    return report(measured, tally, max(recoveries), bound)


def report(rounds: list[Round], tally: Tally, recovery: float, bound: float) -> bool:
    """Prints the figures; returns whether they are as they should be."""
    shares = [each.share for each in rounds]
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


def part_cores(command: tuple[str, ...]) -> tuple[str, ...]:
    """Takes one half of the cores for this process and what it starts; the server gets the other.

    Args:
        command: starts the server.

    Returns:
        The command that starts it there.
    """
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    if not half:
        return command
    os.sched_setaffinity(0, cores[half:])
    return ("taskset", "--cpu-list", ",".join(map(str, cores[:half])), *command)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=Path("bundles/ml-decoder-lite0"))
    parser.add_argument("--photo", type=Path, default=Path("docs/photos/chelsea.jpg"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--queue-size", type=int, default=64)
    arguments = parser.parse_args()
    photo = arguments.photo.read_bytes()
    server = list_ours(arguments.bundle, "auto", photo)
    command = (*server.command, "--queue-size", str(arguments.queue_size))
    server = replace(server, command=part_cores(command))
    with run_server(server, PORT) as running:
        subject = Subject(running, photo)
        good = asyncio.run(run(subject, arguments.rounds, arguments.seconds, arguments.queue_size))
    sys.exit(not good)


if __name__ == "__main__":
    main()
