"""Processor time of a request without decoding and model, here and in other checkouts.

    git worktree add ../before HEAD~1
    python -m tests.benchmarks.own_cost --against ../before

Each checkout runs its own server (`own_cost.py serve`), with a model and a decoder that cost
nothing. Differences of 5 % show here; with a model the noise of 10 % hides them.
"""

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnxruntime as ort
import typer

from service.bundle.card import InputContract
from service.cli.__main__ import main as run_command
from service.images.decode import DecodedImage, decode_image
from service.images.jpeg import Jpeg
from service.pipeline import worker
from tests.benchmarks.load import busy_seconds, find_processes, measure_load
from tests.benchmarks.servers import (
    BUNDLE,
    PHOTO,
    ROOT,
    Running,
    Server,
    compare_in_turns,
    list_ours,
)


def main(
    *,
    against: Annotated[list[Path] | None, typer.Option(help="Another checkout.")] = None,
    clients: str = "1,32",
    turns: int = 24,
    seconds: Annotated[int, typer.Option(help="Of one turn; whole, for `wrk`.")] = 1,
) -> None:
    """Prints microseconds per request, and their ratio to this checkout's with quartiles.

    The least of all turns is the best figure, since any disturbance only adds.
    """

    def ask(server: Server, running: Running, count: int) -> float:
        processes = find_processes(pids := running.pids())
        before = busy_seconds(processes)
        load = measure_load(running.address, server.request, count, seconds, pids)
        if load.errors or load.refused:
            raise RuntimeError(f"{server.name}: {load.errors} errors, {load.refused}/s refused")
        return (busy_seconds(processes) - before) / (load.rate * seconds) * 1e6

    servers = [_list_free(folder.resolve()) for folder in (ROOT, *(against or ()))]
    compare_in_turns(servers, clients, turns, ask, _show)


def _list_free(checkout: Path) -> Server:
    ours = list_ours(BUNDLE, "auto", PHOTO.read_bytes(), str(checkout), checkout)
    python, _, _, *serve = ours.command
    command = (python, str(checkout / "tests/benchmarks/own_cost.py"), *serve)
    return replace(
        ours, command=command, request=replace(ours.request, path="/predict?label_set=trained")
    )


def _show(title: str, costs: list[float], first: list[float]) -> None:
    low, middle, high = np.percentile(np.divide(costs, first), [25, 50, 75])
    least, usual = min(costs), statistics.median(costs)
    print(f"{title}: least {least:.0f} us a request, {least / min(first):.3f} of the first's; "
          f"median {usual:.0f}, {middle:.3f} of the first's ({low:.3f} to {high:.3f})",
          flush=True)  # fmt: skip


def serve_free_model() -> None:
    """Runs the service; each graph runs once for each shape of inputs, one photo is decoded."""
    run = ort.InferenceSession.run
    results: dict[tuple[object, ...], list[Any]] = {}
    photos: list[DecodedImage] = []

    def run_once(
        session: ort.InferenceSession, outputs: Sequence[str], feeds: Mapping[str, np.ndarray]
    ) -> list[Any]:
        key = (session, *outputs, *(tensor.shape for tensor in feeds.values()))
        if key not in results:
            results[key] = run(session, outputs, feeds)
        return results[key]

    def decode_once(photo: Jpeg, contract: InputContract, max_pixels: int) -> DecodedImage:
        if not photos:
            photos.append(decode_image(photo, contract, max_pixels))
        return photos[0]

    ort.InferenceSession.run = run_once
    worker.decode_image = decode_once
    run_command()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve_free_model()
    else:
        typer.run(main)
