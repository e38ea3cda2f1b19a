"""The cost of a bundle's graphs, and of a long run.

python -m tests.benchmarks.costs model|soak --help
"""

import asyncio
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from service.bundle.manifest import GraphName
from service.bundle.reader import load_bundle
from service.engine.sessions import SessionConfig, open_session
from service.settings import MIB
from tests.benchmarks.load import Client, make_request
from tests.benchmarks.servers import BUNDLE
from tests.e2e.server_process import ServerProcess
from tests.support.photos import encode_picture, make_picture

app = typer.Typer(help=__doc__)


@app.command()
def model(*, bundle: Path = BUNDLE, labels: int = 1000, rounds: int = 100) -> None:
    """Prints ms per image of a bundle's graphs on one core, without the service around them."""
    opened = load_bundle(bundle)
    graphs: tuple[GraphName, ...] = ("encoder", "trained_head", "open_head")
    sessions = {
        (precision, graph): open_session(opened, graph, SessionConfig("cpu", precision))
        for precision in opened.precisions()
        for graph in graphs
        if graph in opened.manifest.graphs
    }
    size, noise = opened.card.input, np.random.default_rng(0)
    seconds = defaultdict[tuple[str, str], list[float]](list)
    for _ in range(rounds):
        image = noise.integers(0, 256, (1, size.height, size.width, 3), dtype=np.uint8)
        feeds: dict[str, NDArray[np.generic]] = {"images": image}
        for key, session in sessions.items():
            if key[1] == "open_head":
                width = session.get_inputs()[1].shape[1]
                feeds["queries"] = noise.normal(size=(labels, width)).astype(np.float32)
            inputs = {entry.name: feeds[entry.name] for entry in session.get_inputs()}
            first = [session.get_outputs()[0].name]  # without the memory, like most requests
            started = time.perf_counter()
            (result,) = session.run(first, inputs)
            seconds[key].append(time.perf_counter() - started)
            if key[1] == "encoder":
                feeds["tokens"] = result
    print(f"{'ms an image, one core':24} {'median':>8} {'fastest tenth':>14}")
    for key, found in seconds.items():
        median, fast = (np.quantile(found, share) * 1000 for share in (0.5, 0.1))
        print(f"{' '.join(key):24} {median:8.2f} {fast:14.2f}")


@app.command()
def soak(
    *,
    bundle: Path = BUNDLE,
    minutes: float = 30.0,
    warm_up: Annotated[float, typer.Option(help="Minutes that do not count.")] = 5.0,
    clients: int = 4,
    device: str = "cpu",
) -> None:
    """Sends photos of mixed sizes for a long time and prints memory and latency every 10 s.

    Exits with 1 if memory grew by more than 3 % after the warm-up.
    """
    if minutes <= warm_up:
        raise typer.BadParameter("--minutes must be more than --warm-up")
    flags = ("--port", "0", "--workers", "1", "--device", device, "--label-store", "memory")
    with ServerProcess("serve", "--bundle", str(bundle), *flags) as server:
        seen = asyncio.run(_send_mixed_sizes(server, minutes, clients))
    after = [resident for minute, resident in seen if minute >= warm_up]
    # Means of a fifth at each end: a single look may fall into a large photo.
    few = max(1, len(after) // 5)
    growth = (sum(after[-few:]) / sum(after[:few]) - 1) * 100
    print(f"resident memory grew by {growth:.2f} % after {warm_up:g} minutes")
    raise typer.Exit(int(growth > 3))


async def _send_mixed_sizes(
    server: ServerProcess, minutes: float, clients: int
) -> list[tuple[float, int]]:
    """Prints a line every 10 s; returns the minutes and the resident bytes of each."""
    address = server.find_address()
    server.open_client().close()
    sizes = (32, 32), (320, 240), (1, 900), (1024, 768), (2000, 1500), (3000, 400), (640, 1800)
    requests = [
        make_request(encode_picture(make_picture(number, *size), file_format), "?top_k=3")
        for number, size in enumerate(sizes)
        for file_format in ("JPEG", "PNG", "WEBP")
    ]
    seconds: list[float] = []
    started = time.monotonic()
    ends = started + minutes * 60

    async def keep_asking(seed: int) -> None:
        client, chance = await Client.connect(address), random.Random(seed)
        while time.monotonic() < ends:
            status, taken = await client.ask(chance.choice(requests))
            assert status == 200, status
            seconds.append(taken)
        client.close()

    async def watch() -> list[tuple[float, int]]:
        seen: list[tuple[float, int]] = []
        asked = 0
        while time.monotonic() < ends:
            await asyncio.sleep(min(10, max(0.0, ends - time.monotonic())))
            last, seconds[:] = list(seconds), []
            asked += len(last)
            seen.append(((time.monotonic() - started) / 60, server.read_memory()))
            p50, p99 = np.percentile(last or [np.nan], (50, 99)) * 1000
            print(f"{seen[-1][0]:6.2f} min  {asked:8d} photos  {seen[-1][1] / MIB:7.1f} MiB  "
                  f"p50 {p50:6.1f} ms  p99 {p99:6.1f} ms", flush=True)  # fmt: skip
        return seen

    seen, *_ = await asyncio.gather(watch(), *(keep_asking(seed) for seed in range(clients)))
    return seen


if __name__ == "__main__":
    app()
