"""How fast `ml-decoder bulk` is against the service on the same machine, as a ratio.

In: a bundle. Out: lines on stdout. Run by hand: `python -m tests.benchmarks.bulk --bundle BUNDLE`.
Rounds of both take turns, so that a busy machine slows both. The service is asked by clients that
keep more photos under way than it can answer; they share its cores, as clients on one machine
do; how many cores they took from it is printed too.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx

from service.cli.bulk.run import BulkJob, Totals, run_bulk
from service.labels.question import Question
from service.settings import Settings
from tests.e2e.server_process import ServerProcess
from tests.support.photos import encode_picture, make_picture

CLIENTS = 16
WARM_UP = 32


def write_photos(folder: Path, count: int) -> list[Path]:
    """Writes JPEG photos of 640 x 480 pixels."""
    paths = []
    for number in range(count):
        path = folder / f"{number:05}.jpg"
        path.write_bytes(encode_picture(make_picture(number, 640, 480), "JPEG", quality=90))
        paths.append(path)
    return paths


def measure_service(client: httpx.Client, paths: list[Path]) -> tuple[float, float]:
    """Returns photos a second, and the processor seconds of the clients for each second."""

    def ask(path: Path) -> None:
        answer = client.post(
            "/predict", content=path.read_bytes(), headers={"Content-Type": "image/jpeg"}
        )
        assert answer.status_code == 200, answer.text

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(ask, paths[:WARM_UP]))
        cost, started = _processor_seconds(), time.perf_counter()
        list(clients.map(ask, paths))
        seconds = time.perf_counter() - started
    return len(paths) / seconds, (_processor_seconds() - cost) / seconds


def measure_bulk(bundle: Path, photos: Path) -> float:
    """Returns photos a second, from the first that is begun to the last that is filed."""
    settings = Settings(bundle=bundle, device="cpu", label_store="memory")
    moments: list[float] = []

    def report(_totals: Totals, _to_do: int) -> None:
        moments.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as out:
        job = BulkJob(str(photos), out, Question(), settings, part_size=100)
        totals = asyncio.run(run_bulk(job, report))
    assert totals.failed == 0
    return totals.tagged / (moments[-1] - moments[0])


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Prints the throughputs of each round and the median of their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--photos", type=int, default=400, help="photos a round")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    serve = ("serve", "--bundle", str(arguments.bundle), "--port", "0", "--device", "cpu")
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photos(Path(folder), arguments.photos)
        with ServerProcess(*serve, "--log-level", "info") as server, server.open_client() as client:
            for number in range(arguments.rounds):
                served, cost = measure_service(client, paths)
                tagged = measure_bulk(arguments.bundle, Path(folder))
                ratios.append(tagged / served)
                print(
                    f"round {number + 1}: service {served:.1f} photos/s (its clients used "
                    f"{cost:.2f} cores), bulk {tagged:.1f} photos/s, ratio {ratios[-1]:.2f}",
                    flush=True,
                )
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
