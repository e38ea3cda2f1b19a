"""Our server beside the limit of the machine, and beside other servers of the same model.

    python -m tests.benchmarks.serving [--bundle BUNDLE] [--precision fp32,int8] [--peers FOLDER]

In: a bundle and a photo; Debian's `wrk`. Out: a table: requests a second at 1, 8 and 32 clients
with their ratio to the limit measured in the same rounds, latencies, errors, memory and cold
start. Every round measures each server once, in changing order, and the limit before and after
each slice of load: machines change their speed by the minute. The table shows medians. Slices
during which others used the machine are measured again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from tests.benchmarks.limit import Limit
from tests.benchmarks.load import TRIES, Load, measure_load, take_quietest
from tests.benchmarks.servers import ROOT, Running, Server, list_ours, list_peers, run_server

_CLIENTS = (1, 8, 32)
_FIRST_PORT = 18200


@dataclass
class Figures:
    """What the rounds showed of one server."""

    loads: dict[int, list[Load]] = field(default_factory=lambda: defaultdict(list))
    limits: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    memory_mib: list[float] = field(default_factory=list)
    cold_seconds: list[float] = field(default_factory=list)


def main() -> None:
    """Measures as the command line says."""
    given = _parse()
    photo = given.photo.read_bytes()
    precisions = given.precision.split(",")
    servers = [list_ours(given.bundle, p, photo, f"ours {p}") for p in precisions]
    if given.peers is not None:
        only = tuple(name for name in given.only.split(",") if name)
        servers += list_peers(given.peers, given.photo, only)
    figures: dict[str, Figures] = defaultdict(Figures)
    limit = Limit(given.bundle, precisions[0], photo)
    for number in range(given.rounds):
        print(f"round {number + 1}", file=sys.stderr, flush=True)
        for place, server in enumerate(servers if number % 2 == 0 else servers[::-1]):
            port = _FIRST_PORT + 20 * number + place
            with run_server(server, port) as running:
                _measure_server(server, running, limit, figures[server.name], given.seconds)
    _print_table(figures)


def _measure_server(
    server: Server, running: Running, limit: Limit, figures: Figures, seconds: float
) -> None:
    figures.cold_seconds.append(running.cold_seconds)
    measure_load(running.address, server.request, 8, seconds, running.pids())
    for clients in _CLIENTS:
        slices = (_measure_slice(server, running, limit, clients, seconds) for _ in range(TRIES))
        load, most = take_quietest(slices, itemgetter(0))
        figures.loads[clients].append(load)
        figures.limits[clients].append(most)
        print(f"  {server.name} {clients}: of {most:.1f} {load}", file=sys.stderr, flush=True)
    figures.memory_mib.append(running.memory_mib())


def _measure_slice(
    server: Server, running: Running, limit: Limit, clients: int, seconds: float
) -> tuple[Load, float]:
    """Returns a slice of load, and the limit around it."""
    before = limit.measure(seconds / 2, lone=clients == 1)
    load = measure_load(running.address, server.request, clients, seconds, running.pids())
    after = limit.measure(seconds / 2, lone=clients == 1)
    return load, (before + after) / 2


def _print_table(figures: dict[str, Figures]) -> None:
    lone, *_, loaded = (
        statistics.median(limit for found in figures.values() for limit in found.limits[clients])
        for clients in _CLIENTS
    )
    print(f"limit of one process: {loaded:.0f} images/s loaded, {lone:.0f} one at a time\n")
    heads = " | ".join(f"{clients} clients: req/s (of limit), p50/p99 ms" for clients in _CLIENTS)
    print(f"| server | {heads} | errors | memory MiB | cold start s |")
    print("|---" * (len(_CLIENTS) + 4) + "|")
    for name, found in figures.items():
        cells = [_describe(found, clients) for clients in _CLIENTS]
        errors = sum(load.errors for loads in found.loads.values() for load in loads)
        memory = statistics.median(found.memory_mib)
        cold = statistics.median(found.cold_seconds)
        print(f"| {name} | {' | '.join(cells)} | {errors} | {memory:.0f} | {cold:.1f} |")


def _describe(found: Figures, clients: int) -> str:
    loads = found.loads[clients]
    rate, p50, p99 = (
        statistics.median(getattr(load, name) for load in loads)
        for name in ("rate", "p50_ms", "p99_ms")
    )
    ratios = [load.rate / limit for load, limit in zip(loads, found.limits[clients], strict=True)]
    return f"{rate:.0f} ({statistics.median(ratios):.2f}) {p50:.1f}/{p99:.1f}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=ROOT / "bundles/ml-decoder-lite0")
    parser.add_argument("--precision", default="int8,fp32",
                        help="with commas between, on another device as openvino:bf16; "
                             "the first is the limit's")  # fmt: skip
    parser.add_argument("--photo", type=Path, default=ROOT / "docs/photos/chelsea.jpg")
    parser.add_argument("--peers", type=Path, help="folder with a bench.py that lists them")
    parser.add_argument("--only", default="", help="names of peers, with commas between")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
