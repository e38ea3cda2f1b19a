"""Ten times more requests than the service can answer: what happens to those it takes.

    python -m tests.benchmarks.overload [--bundle BUNDLE]

In: a bundle; Debian's `wrk`. Out: the peak rate, then under overload the rate of accepted
requests, their 99th percentile, the time to refuse, and how soon all is as before. `wrk` makes the
flood, whose connections wait at random between their requests; a few clients of this process ask
among it and take the times, so that the load costs the server's cores little.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
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


async def run(subject: Subject, seconds: float, queue_size: int) -> bool:
    """Prints the figures; returns whether they are as they should be."""
    alone = await probe_for(subject, 1, 0, 3)
    before = await asyncio.to_thread(subject.load, PEAK_CLIENTS, seconds)
    clients = round(TIMES * before.rate * FLOOD_PAUSE_SECONDS) + queue_size
    flooding = asyncio.to_thread(subject.load, clients, seconds, FLOOD_PAUSE_SECONDS)
    flood, tally = await asyncio.gather(
        flooding, probe_for(subject, PROBES, PROBE_PAUSE_SECONDS, seconds)
    )
    recovery = await measure_recovery(subject, percentile(alone.accepted, 95))
    after = await asyncio.to_thread(subject.load, PEAK_CLIENTS, seconds)
    peak = (before.rate + after.rate) / 2
    share = (flood.rate + len(tally.accepted) / seconds) / peak
    offered = flood.rate + (flood.errors + len(tally.accepted) + len(tally.refused)) / seconds
    bound = queue_size / peak
    slowest, refusal = percentile(tally.accepted, 99), percentile(tally.refused, 99)
    usual = percentile(alone.accepted, 50)
    print(f"peak: {peak:.0f} answers a second; alone {usual * 1000:.1f} ms")
    print(f"offered: {offered:.0f} a second, {offered / peak:.1f} times the peak")
    print(f"accepted: {share * 100:.0f} % of the peak; other answers {tally.others}")
    print(f"p99 of the accepted: {slowest:.2f} s, {slowest / bound:.2f} times the queue's own "
          f"{bound:.2f} s")  # fmt: skip
    print(f"time to refuse: median {percentile(tally.refused, 50) * 1000:.1f} ms, "
          f"p99 {refusal * 1000:.1f} ms")  # fmt: skip
    print(f"back to normal after {recovery:.2f} s")
    return share >= 0.9 and slowest <= 2 * bound and recovery <= 1 and tally.others == 0


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=Path("bundles/ml-decoder-lite0"))
    parser.add_argument("--photo", type=Path, default=Path("docs/photos/chelsea.jpg"))
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--queue-size", type=int, default=64)
    arguments = parser.parse_args()
    photo = arguments.photo.read_bytes()
    server = list_ours(arguments.bundle, "auto", photo)
    server = replace(server, command=(*server.command, "--queue-size", str(arguments.queue_size)))
    with run_server(server, PORT) as running:
        subject = Subject(running, photo)
        good = asyncio.run(run(subject, arguments.seconds, arguments.queue_size))
    sys.exit(not good)


if __name__ == "__main__":
    main()
