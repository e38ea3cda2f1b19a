"""Throughput of `ml-decoder bulk` relative to the service on the same machine.

    python -m tests.benchmarks.bulk --bundle BUNDLE

Rounds of both take turns. The clients of the service share its cores; the seconds that they take
are printed too.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import httpx2 as httpx
import typer

from service.cli.bulk.run import BulkJob, Totals, run_bulk
from service.labels.question import Question
from service.settings import Settings
from tests.e2e.server_process import ServerProcess
from tests.support.photos import encode_picture, make_picture

CLIENTS = 16
WARM_UP = 32


def measure_service(client: httpx.Client, paths: list[Path]) -> tuple[float, float]:
    """Returns photos per second, and the cores that the clients used."""

    def ask(path: Path) -> None:
        answer = client.post(
            "/predict", content=path.read_bytes(), headers={"Content-Type": "image/jpeg"}
        )
        assert answer.status_code == 200, answer.text

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(ask, paths[:WARM_UP]))
        cost, started = time.process_time(), time.perf_counter()
        list(clients.map(ask, paths))
        seconds = time.perf_counter() - started
    return len(paths) / seconds, (time.process_time() - cost) / seconds


def measure_bulk(bundle: Path, photos: Path) -> float:
    """Returns photos per second, from the first to the last report."""
    settings = Settings(bundle=bundle, device="cpu", label_store="memory")
    moments: list[float] = []

    def report(_totals: Totals, _to_do: int) -> None:
        moments.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as out:
        job = BulkJob(str(photos), out, Question(), settings, part_size=100)
        totals = asyncio.run(run_bulk(job, report))
    assert totals.failed == 0
    return totals.tagged / (moments[-1] - moments[0])


def main(
    *,
    bundle: Annotated[Path, typer.Option()],
    photos: Annotated[int, typer.Option(help="Photos a round.")] = 400,
    rounds: int = 5,
) -> None:
    """Compares bulk tagging with the service."""
    serve = ("serve", "--bundle", str(bundle), "--port", "0", "--device", "cpu")
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number:05}.jpg") for number in range(photos)]
        for number, path in enumerate(paths):
            picture = make_picture(number, 640, 480)
            path.write_bytes(encode_picture(picture, "JPEG", quality=90))
        with ServerProcess(*serve, "--log-level", "info") as server, server.open_client() as client:
            for number in range(rounds):
                served, cost = measure_service(client, paths)
                tagged = measure_bulk(bundle, Path(folder))
                ratios.append(tagged / served)
                print(
                    f"round {number + 1}: service {served:.1f} photos/s (its clients used "
                    f"{cost:.2f} cores), bulk {tagged:.1f} photos/s, ratio {ratios[-1]:.2f}",
                    flush=True,
                )
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    typer.run(main)
