"""Compares servers in turns: variants of this service, other checkouts of it, and peers.

    python -m tests.benchmarks.paired --bundle BUNDLE --peers FOLDER --only mosec,litserve
    python -m tests.benchmarks.paired --bundle BUNDLE --precision fp32,openvino:bf16
    python -m tests.benchmarks.paired --bundle BUNDLE --precision int8 --workers 1,2
    python -m tests.benchmarks.paired --bundle BUNDLE --against CHECKOUT

Prints median and quartiles of each rate relative to the first server's of the same turn, so that
changes of the machine's speed cancel out. All servers run from the first turn to the last, paused
but for one. Triton ends when it is paused under load: use `serving.py`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from tests.benchmarks.load import Load, describe_loads, measure_load, measure_quietly
from tests.benchmarks.servers import (
    PHOTO,
    Running,
    Server,
    compare_in_turns,
    list_ours,
    list_peers,
    list_variants,
)


def main(  # noqa: PLR0913 - a parameter for each flag
    *,
    bundle: Annotated[Path, typer.Option()],
    precision: Annotated[str, typer.Option(help="With commas between, or openvino:bf16.")] = "fp32",
    workers: Annotated[str, typer.Option(help="With commas between.")] = "1",
    photo: Path = PHOTO,
    peers: Annotated[Path | None, typer.Option(help="Folder with a bench.py.")] = None,
    only: Annotated[str, typer.Option(help="Names of peers, with commas between.")] = "",
    against: Annotated[list[Path] | None, typer.Option(help="Another checkout.")] = None,
    clients: str = "1,8,32",
    turns: int = 10,
    seconds: float = 3.0,
) -> None:
    """Compares servers in turns."""
    content, precisions = photo.read_bytes(), precision.split(",")
    servers = list_variants(bundle, precisions, content, workers)
    for checkout in against or ():
        name = f"{checkout} {precisions[0]}"
        before = list_ours(bundle, precisions[0], content, name, checkout.resolve())
        flags = ("--workers", workers.split(",")[0])
        servers.append(replace(before, command=(*before.command, *flags)))
    servers += list_peers(peers, photo, only)

    def ask(server: Server, running: Running, count: int) -> Load:
        pids = running.pids()
        return measure_quietly(
            lambda: measure_load(running.address, server.request, count, seconds, pids)
        )

    compare_in_turns(servers, clients, turns, ask, _show)


def _show(title: str, loads: list[Load], first: list[Load]) -> None:
    ratios = [load.rate / other.rate for load, other in zip(loads, first, strict=True)]
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    print(f"{title}: {middle:.2f} of the first ({low:.2f} to {high:.2f}), {describe_loads(loads)}, "
          f"errors {sum(load.errors for load in loads)}", flush=True)  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
