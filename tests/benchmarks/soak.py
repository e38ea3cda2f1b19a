"""Photos of mixed sizes for a long time: memory and latency should stay flat.

    python -m tests.benchmarks.soak --minutes 30

Prints a line every 10 s; exits with 1 if memory grew by more than 3 % after the warm-up.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from tests.benchmarks.load import Client, make_request, percentile
from tests.benchmarks.servers import BUNDLE
from tests.e2e.server_process import ServerProcess
from tests.support.photos import encode_picture, make_picture

SIZES = ((32, 32), (320, 240), (1, 900), (1024, 768), (2000, 1500), (3000, 400), (640, 1800))
FORMATS = ("JPEG", "PNG", "WEBP")
MIB = 1024 * 1024
MOST_GROWTH_PERCENT = 3.0
INTERVAL_SECONDS = 10.0
OK = 200


async def run(server: ServerProcess, minutes: float, clients: int) -> list[tuple[float, int]]:
    """Prints a line at each interval; returns the minutes and the resident bytes of each."""
    address = server.find_address()
    server.open_client().close()
    requests = [
        make_request(encode_picture(make_picture(number, *size), file_format), "?top_k=3")
        for number, size in enumerate(SIZES)
        for file_format in FORMATS
    ]
    seconds: list[float] = []
    started = time.monotonic()
    ends = started + minutes * 60

    async def keep_asking(seed: int) -> None:
        client, chance = await Client.connect(address), random.Random(seed)
        while time.monotonic() < ends:
            status, taken = await client.ask(chance.choice(requests))
            assert status == OK, status
            seconds.append(taken)
        client.close()

    async def watch() -> list[tuple[float, int]]:
        seen: list[tuple[float, int]] = []
        asked = 0
        while time.monotonic() < ends:
            await asyncio.sleep(min(INTERVAL_SECONDS, max(0.0, ends - time.monotonic())))
            last, seconds[:] = list(seconds), []
            asked += len(last)
            seen.append(((time.monotonic() - started) / 60, server.read_memory()))
            times = [f"{percentile(last, p) * 1000:6.1f}" for p in (50, 99)] if last else ["-", "-"]
            print(f"{seen[-1][0]:6.2f} min  {asked:8d} photos  {seen[-1][1] / MIB:7.1f} MiB  "
                  f"p50 {times[0]} ms  p99 {times[1]} ms", flush=True)  # fmt: skip
        return seen

    seen, *_ = await asyncio.gather(watch(), *(keep_asking(seed) for seed in range(clients)))
    return seen


def main(
    *,
    bundle: Path = BUNDLE,
    minutes: float = 30.0,
    warm_up: Annotated[float, typer.Option(help="Minutes that do not count.")] = 5.0,
    clients: int = 4,
    device: str = "cpu",
) -> None:
    """Sends photos of mixed sizes for a long time."""
    if minutes <= warm_up:
        raise typer.BadParameter("--minutes must be more than --warm-up")
    flags = ("--port", "0", "--device", device, "--label-store", "memory")
    with ServerProcess("serve", "--bundle", str(bundle), *flags) as server:
        seen = asyncio.run(run(server, minutes, clients))
    after = [resident for minute, resident in seen if minute >= warm_up]
    # Means of a fifth at each end: a single look may fall into a large photo.
    few = max(1, len(after) // 5)
    growth = (sum(after[-few:]) / sum(after[:few]) - 1) * 100
    print(f"resident memory grew by {growth:.2f} % after {warm_up:g} minutes")
    sys.exit(growth > MOST_GROWTH_PERCENT)


if __name__ == "__main__":
    typer.run(main)
