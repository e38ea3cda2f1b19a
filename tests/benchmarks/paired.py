"""Our server and others, asked in turn: who answers more, where it is close?

    python -m tests.benchmarks.paired --bundle BUNDLE --peers FOLDER --only mosec,litserve
    python -m tests.benchmarks.paired --bundle BUNDLE --precision fp32,openvino:bf16

In: a bundle and a folder of peers; Debian's `wrk`. Out: a line for each server and number of
clients, with the median and the quartiles of its rate beside the first one's of the same turn. A
machine that changes its speed by the minute changes it for all. All servers run from the first
turn to the last; while one is asked the others are stopped (SIGSTOP). Slices during which others
used the machine are measured again. Triton ends when it is stopped under load: `serving.py`
measures it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from tests.benchmarks.load import TRIES, Load, measure_load, take_quietest
from tests.benchmarks.servers import (
    ROOT,
    Running,
    Server,
    list_ours,
    list_peers,
    run_servers,
    take_turns,
)

_FIRST_PORT = 18400


def main() -> None:
    """Measures as the command line says."""
    given = _parse()
    photo = given.photo.read_bytes()
    servers = [list_ours(given.bundle, p, photo, f"ours {p}") for p in given.precision.split(",")]
    only = tuple(name for name in given.only.split(",") if name)
    if given.peers is not None:
        servers += list_peers(given.peers, given.photo, only)
    with run_servers(servers, _FIRST_PORT) as pairs:
        for clients in map(int, given.clients.split(",")):
            how = {"clients": clients, "seconds": given.seconds}
            take_turns(pairs, 1, partial(_ask, **how))  # to warm up
            _show(servers, clients, take_turns(pairs, given.turns, partial(_ask_in_quiet, **how)))


def _ask(server: Server, running: Running, clients: int, seconds: float) -> Load:
    return measure_load(running.address, server.request, clients, seconds, running.pids())


def _ask_in_quiet(server: Server, running: Running, clients: int, seconds: float) -> Load:
    slices = (_ask(server, running, clients, seconds) for _ in range(TRIES))
    return take_quietest(slices, lambda load: load)


def _show(servers: Sequence[Server], clients: int, loads: Sequence[Sequence[Load]]) -> None:
    for server, own in zip(servers, loads, strict=True):
        ratios = [load.rate / ours.rate for load, ours in zip(own, loads[0], strict=True)]
        low, middle, high = np.percentile(ratios, [25, 50, 75])
        rate, p50, p99 = (
            statistics.median(values)
            for values in zip(*((load.rate, load.p50_ms, load.p99_ms) for load in own), strict=True)
        )
        errors = sum(load.errors for load in own)
        print(f"{clients} clients, {server.name}: {middle:.2f} of the first "
              f"({low:.2f} to {high:.2f}), {rate:.0f} req/s, p50/p99 {p50:.0f}/{p99:.0f} ms, "
              f"errors {errors}", flush=True)  # fmt: skip


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--precision", default="fp32",
                        help="with commas between, on another device as openvino:bf16; "
                             "the others are held against the first")  # fmt: skip
    parser.add_argument("--photo", type=Path, default=ROOT / "docs/photos/chelsea.jpg")
    parser.add_argument("--peers", type=Path, help="folder with a bench.py that lists them")
    parser.add_argument("--only", default="", help="names of peers, with commas between")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
