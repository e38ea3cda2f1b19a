"""Processor time of a request without decoding and model, here and in other checkouts.

    git worktree add ../before HEAD~1
    python -m tests.benchmarks.own_cost --against ../before

Prints microseconds per request: the least of all turns, since any disturbance only adds, and the
median, with quartiles of the ratio to this checkout. Each checkout runs its own `free_model.py`.
Differences of 5 % show here; beside a model they drown in a noise of 10 %.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from tests.benchmarks.load import busy_seconds, find_processes, measure_load
from tests.benchmarks.servers import (
    BUNDLE,
    PHOTO,
    ROOT,
    Running,
    Server,
    find_python,
    make_multipart,
    run_servers,
    take_turns,
)


def main(
    *,
    against: Annotated[list[Path] | None, typer.Option(help="Another checkout.")] = None,
    clients: str = "1,32",
    turns: int = 24,
    seconds: Annotated[int, typer.Option(help="Of one turn; whole, for `wrk`.")] = 1,
) -> None:
    """Measures the processor time of a request without decoding and model."""
    servers = [_list_free(folder.resolve()) for folder in (ROOT, *(against or ()))]
    with run_servers(servers) as pairs:
        for count in map(int, clients.split(",")):

            def ask(server: Server, running: Running, count: int = count) -> float:
                """Returns microseconds a request."""
                processes = find_processes(pids := running.pids())
                before = busy_seconds(processes)
                load = measure_load(running.address, server.request, count, seconds, pids)
                if load.errors:
                    raise RuntimeError(f"{server.name}: {load.errors} errors")
                return (busy_seconds(processes) - before) / (load.rate * seconds) * 1e6

            for server, costs in zip(servers, found := take_turns(pairs, turns, ask), strict=True):
                _show(f"{count} clients, {server.name}", costs, found[0])


def _list_free(checkout: Path) -> Server:
    program = str(checkout / "tests/benchmarks/free_model.py")
    command = (find_python(checkout), program, "--port", "{port}", "--label-store", "memory",
               "--device", "cpu", "--log-level", "warning", "--bundle", str(BUNDLE))  # fmt: skip
    request = make_multipart(PHOTO.read_bytes())
    return Server(str(checkout), command, request, {"PYTHONPATH": str(checkout)}, checkout)


def _show(title: str, costs: list[float], first: list[float]) -> None:
    low, middle, high = np.percentile(np.divide(costs, first), [25, 50, 75])
    least, usual = min(costs), statistics.median(costs)
    print(f"{title}: least {least:.0f} us a request, {least / min(first):.3f} of the first's; "
          f"median {usual:.0f}, {middle:.3f} of the first's ({low:.3f} to {high:.3f})",
          flush=True)  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
