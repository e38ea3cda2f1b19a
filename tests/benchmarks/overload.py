"""Ten times more requests than the service can answer: what happens to those it takes.

In: a bundle. Out: the peak rate, then under overload the rate of accepted requests, their 99th
percentile, the time to refuse, and how soon all is as before. Run by hand, with nothing else on the
machine: `python -m tests.benchmarks.overload --bundle bundles/ml-decoder-lite0`. The load comes
from the same machine and takes its share of the cores: compare the rates of one run only.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.asking import Client, make_request, percentile
from tests.e2e.server_process import ServerProcess
from tests.photos import encode_picture, make_picture

OK, BUSY = 200, 429
# Enough to keep the queue from running empty, too few to fill it.
PEAK_CLIENTS = 16


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


async def ask_in_turn(address: tuple[str, int], request: bytes, ends: float, tally: Tally) -> None:
    """One client that sends its next request when it has its answer."""
    client = await Client.connect(address)
    while time.perf_counter() < ends:
        tally.add(*await client.ask(request))
    client.close()


async def measure_peak(address: tuple[str, int], request: bytes, seconds: float) -> Tally:
    """Keeps a few clients busy."""
    tally, ends = Tally(), time.perf_counter() + seconds
    async with asyncio.TaskGroup() as group:
        for _ in range(PEAK_CLIENTS):
            group.create_task(ask_in_turn(address, request, ends, tally))
    return tally


async def overload(
    address: tuple[str, int], request: bytes, rate: float, seconds: float
) -> tuple[Tally, float, int]:
    """Sends so many requests a second, whether they are answered or not.

    Returns:
        The answers, the real rate, and how many were accepted and answered while it lasted.
    """
    tally, idle = Tally(), [await Client.connect(address) for _ in range(PEAK_CLIENTS)]
    started, sent = time.perf_counter(), 0

    async def send_one() -> None:
        client = idle.pop() if idle else await Client.connect(address)
        tally.add(*await client.ask(request))
        idle.append(client)

    async with asyncio.TaskGroup() as group:
        while (now := time.perf_counter() - started) < seconds:
            while sent < now * rate:
                group.create_task(send_one())
                sent += 1
            await asyncio.sleep(0.002)
        offered, answered = sent / (time.perf_counter() - started), len(tally.accepted)
    for client in idle:
        client.close()
    return tally, offered, answered


async def measure_recovery(address: tuple[str, int], request: bytes, normal: float) -> float:
    """Returns the seconds until a lone request takes no longer than twice the normal time."""
    client, started = await Client.connect(address), time.perf_counter()
    while True:
        status, seconds = await client.ask(request)
        if status == OK and seconds <= 2 * normal:
            client.close()
            return time.perf_counter() - started


async def run(server: ServerProcess, arguments: argparse.Namespace) -> bool:
    """Prints the figures; returns whether they are as they should be."""
    address = server.find_address()
    server.open_client().close()
    request = make_request(encode_picture(make_picture(0, 320, 240), "JPEG"), "?top_k=3")
    alone = Tally()
    await ask_in_turn(address, request, time.perf_counter() + 3, alone)
    peak = await measure_peak(address, request, arguments.seconds)
    rate = len(peak.accepted) / arguments.seconds
    bound = arguments.queue_size / rate
    tally, offered, answered = await overload(address, request, 10 * rate, arguments.seconds)
    recovery = await measure_recovery(address, request, percentile(alone.accepted, 95))
    share = answered / arguments.seconds / rate
    slowest, refusal = percentile(tally.accepted, 99), percentile(tally.refused, 99)
    usual = percentile(alone.accepted, 50)
    print(f"peak: {rate:.0f} answers a second; alone {usual * 1000:.1f} ms")
    print(f"offered: {offered:.0f} a second, {offered / rate:.1f} times the peak")
    print(f"accepted: {share * 100:.0f} % of the peak; refused {len(tally.refused)}; "
          f"other answers {tally.others}")  # fmt: skip
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
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--queue-size", type=int, default=64)
    arguments = parser.parse_args()
    flags = ("--port", "0", "--device", "cpu", "--label-store", "memory")
    command = ("serve", "--bundle", str(arguments.bundle), *flags)
    with ServerProcess(*command, "--queue-size", str(arguments.queue_size)) as server:
        good = asyncio.run(run(server, arguments))
    sys.exit(not good)


if __name__ == "__main__":
    main()
