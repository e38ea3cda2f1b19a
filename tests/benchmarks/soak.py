"""Photos of mixed sizes for a long time: does memory stay flat, does latency?

In: a bundle. Out: a line every ten seconds with resident memory and latency, then how much memory
grew after the first minutes; exit code 1 where that is more than 3 % or an answer was not 200.
Run by hand: `python -m tests.benchmarks.soak --minutes 30`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.asking import Client, make_request, percentile
from tests.e2e.server_process import ServerProcess
from tests.support.photos import encode_picture, make_picture

SIZES = ((32, 32), (320, 240), (1, 900), (1024, 768), (2000, 1500), (3000, 400), (640, 1800))
FORMATS = ("JPEG", "PNG", "WEBP")
MIB = 1024 * 1024
MOST_GROWTH_PERCENT = 3.0
INTERVAL_SECONDS = 10.0
OK = 200


def make_requests() -> list[bytes]:
    """Returns one request for every size and format."""
    photos = [
        encode_picture(make_picture(number, *size), file_format)
        for number, size in enumerate(SIZES)
        for file_format in FORMATS
    ]
    return [make_request(photo, "?top_k=3") for photo in photos]


async def keep_asking(
    address: tuple[str, int],
    requests: Sequence[bytes],
    ends: float,
    seconds: list[float],
    seed: int,
) -> None:
    """One client: photos in random order until the end."""
    client, chance = await Client.connect(address), random.Random(seed)
    while time.monotonic() < ends:
        status, taken = await client.ask(chance.choice(requests))
        assert status == OK, status
        seconds.append(taken)
    client.close()


async def watch(
    server: ServerProcess, started: float, ends: float, seconds: list[float]
) -> list[tuple[float, int]]:
    """Prints a line at each interval; returns the minutes and the resident bytes of each."""
    seen: list[tuple[float, int]] = []
    asked = 0
    while time.monotonic() < ends:
        await asyncio.sleep(min(INTERVAL_SECONDS, max(0.0, ends - time.monotonic())))
        last, seconds[:] = list(seconds), []
        asked += len(last)
        seen.append(((time.monotonic() - started) / 60, server.read_memory()))
        minutes, resident = seen[-1]
        times = [f"{percentile(last, p) * 1000:6.1f}" for p in (50, 99)] if last else ["-", "-"]
        print(f"{minutes:6.2f} min  {asked:8d} photos  {resident / MIB:7.1f} MiB  "
              f"p50 {times[0]} ms  p99 {times[1]} ms", flush=True)  # fmt: skip
    return seen


async def run(server: ServerProcess, arguments: argparse.Namespace) -> float:
    """Returns by how many percent memory grew after the warm-up."""
    address = server.find_address()
    server.open_client().close()
    requests, seconds = make_requests(), list[float]()
    started = time.monotonic()
    ends = started + arguments.minutes * 60
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch(server, started, ends, seconds))
        for seed in range(arguments.clients):
            group.create_task(keep_asking(address, requests, ends, seconds, seed))
    after = [resident for minutes, resident in watching.result() if minutes >= arguments.warm_up]
    # The means of the two ends: a single look may fall into a large photo.
    few = max(1, len(after) // 5)
    first, last = sum(after[:few]) / few, sum(after[-few:]) / few
    return (last / first - 1) * 100


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=Path("bundles/ml-decoder-lite0"))
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--warm-up", type=float, default=5, help="minutes that do not count")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    if arguments.minutes <= arguments.warm_up:
        parser.error("--minutes has to be more than --warm-up")
    flags = ("--port", "0", "--device", arguments.device, "--label-store", "memory")
    with ServerProcess("serve", "--bundle", str(arguments.bundle), *flags) as server:
        growth = asyncio.run(run(server, arguments))
    print(f"resident memory grew by {growth:.2f} % after {arguments.warm_up:g} minutes")
    sys.exit(growth > MOST_GROWTH_PERCENT)


if __name__ == "__main__":
    main()
