"""What a request costs beside decoding and model: processor time of our own, here and before.

    git worktree add ../before HEAD~1
    python -m tests.benchmarks.own_cost --against ../before

In: this checkout and others; Debian's `wrk`. Out: a line for each checkout and number of clients:
microseconds a request, the least of all turns (whatever disturbs a turn only adds to it) and the
median, with the median and the quartiles of the ratio to this checkout's of the same turn. What
saves a twentieth of this shows here, and nowhere beside a model whose time the machine changes by
a tenth.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from tests.benchmarks.load import busy_seconds, measure_load
from tests.benchmarks.servers import (
    ROOT,
    Running,
    Server,
    make_multipart,
    run_servers,
    take_turns,
)

_FIRST_PORT = 18800
_PROGRAM = Path(__file__).with_name("free_model.py")


def main() -> None:
    """Measures as the command line says."""
    given = _parse()
    photo = (ROOT / "docs/photos/chelsea.jpg").read_bytes()
    folders = [ROOT, *(folder.resolve() for folder in given.against)]
    servers = [_list_free(folder, photo) for folder in folders]
    with run_servers(servers, _FIRST_PORT) as pairs:
        for clients in map(int, given.clients.split(",")):
            ask = partial(_measure, clients=clients, seconds=given.seconds)
            take_turns(pairs, 1, ask)  # to warm up
            _show(servers, clients, take_turns(pairs, given.turns, ask))


def _list_free(folder: Path, photo: bytes) -> Server:
    command = (sys.executable, str(_PROGRAM), "--port", "{port}", "--label-store", "memory",
               "--device", "cpu", "--log-level", "warning",
               "--bundle", str(ROOT / "bundles/ml-decoder-lite0"))  # fmt: skip
    variables = {"PYTHONPATH": str(folder)}
    return Server(str(folder), command, make_multipart(photo), variables, folder)


def _measure(server: Server, running: Running, clients: int, seconds: float) -> float:
    """Returns microseconds a request."""
    processes = [psutil.Process(pid) for pid in running.pids()]
    before = busy_seconds(processes)
    load = measure_load(running.address, server.request, clients, seconds, running.pids())
    if load.errors:
        raise RuntimeError(f"{server.name}: {load.errors} errors")
    return (busy_seconds(processes) - before) / (load.rate * seconds) * 1e6


def _show(servers: Sequence[Server], clients: int, costs: Sequence[Sequence[float]]) -> None:
    for server, own in zip(servers, costs, strict=True):
        ratios = [cost / ours for cost, ours in zip(own, costs[0], strict=True)]
        low, middle, high = np.percentile(ratios, [25, 50, 75])
        least, usual = min(own), statistics.median(own)
        print(f"{clients} clients, {server.name}: least {least:.0f} us a request, "
              f"{least / min(costs[0]):.3f} of the first's; median {usual:.0f}, "
              f"{middle:.3f} of the first's ({low:.3f} to {high:.3f})", flush=True)  # fmt: skip


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, action="append", default=[], help="a checkout")
    parser.add_argument("--clients", default="1,32")
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--seconds", type=int, default=1)  # `wrk` counts whole ones
    return parser.parse_args()


if __name__ == "__main__":
    main()
