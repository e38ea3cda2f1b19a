"""What a request costs by the number of registered labels: latency, rate and peak memory.

    python -m tests.benchmarks.labels --bundle BUNDLE

Embeddings are random, so that registering needs no text encoder. The rate is relative to the bare
sessions, which decode and run the same batches in as many threads. Each size runs in a process of
its own, whose peak memory includes the model.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from service.bundle.reader import load_bundle
from service.engine.heads import LABELS_PER_RUN
from service.images.decode import decode_image
from service.labels.definition import Definition
from service.labels.question import Question
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.settings import MIB, Settings
from tests.benchmarks.load import count_a_second
from tests.support.photos import make_photo

SIZES = (1, 1_000, 10_000, 50_000)
WARM_UP = 2
CLIENTS = 16
ROUNDS, ROUND_SECONDS = 5, 4.0


def make_definition(count: int, width: int) -> Definition:
    """Returns a set of `count` labels with random embeddings of length 1."""
    embeddings = np.random.default_rng(count).normal(size=(count, width)).astype(np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    return Definition(
        name="benchmark",
        names=tuple(f"label {i}" for i in range(count)),
        prompts=(None,) * count,
        thresholds=(None,) * count,
        given=tuple(range(count)),
        embeddings=embeddings,
    )


async def measure(pipeline: Pipeline, count: int, runs: int) -> None:
    """Prints one row: `runs` requests over `count` labels one by one, and rates."""
    await pipeline.start()
    encoding = pipeline.catalogue.encoding
    assert encoding is not None, "the bundle has no open head"
    width = encoding.head.embedding_space.width
    await pipeline.catalogue.register(make_definition(count, width))
    question = Question(label_set=("benchmark",), top_k=10)
    seconds = []
    for run in range(WARM_UP + runs):
        started = time.perf_counter()
        await pipeline.predict(make_photo(run), await pipeline.select(question))
        seconds.append(time.perf_counter() - started)
    rates = np.array([await compare_rates(pipeline, question) for _ in range(ROUNDS)])
    await pipeline.drain()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    middle, worst = np.percentile(seconds[WARM_UP:], [50, 95]) * 1000
    rate, share = np.median(rates[:, 0]), np.median(rates[:, 0] / rates[:, 1])
    print(f"| {count:,} | {middle:.1f} | {worst:.1f} | {rate:.1f} ({share:.2f}) | {peak:.0f} |",
          flush=True)  # fmt: skip


async def compare_rates(pipeline: Pipeline, question: Question) -> tuple[float, float]:
    """Returns photos per second of many parallel requests, and of the bare sessions."""
    engine, contract, photo = pipeline.engine, pipeline.bundle.card.input, make_photo(0)
    selection = await pipeline.select(question)

    def run_batch() -> None:
        decoded = [decode_image(photo, contract, MIB) for _ in range(engine.max_batch_size)]
        engine.run(np.stack([d.pixels for d in decoded]), [selection.heads] * len(decoded))

    async def ask() -> int:
        answers = 0
        while time.perf_counter() < ends:
            await pipeline.predict(photo, selection)
            answers += 1
        return answers

    run_batch()
    started = time.perf_counter()
    ends = started + ROUND_SECONDS
    answers = sum(await asyncio.gather(*(ask() for _ in range(CLIENTS))))
    rate = answers / (time.perf_counter() - started)
    batches = await asyncio.to_thread(count_a_second, run_batch, engine.workers, ROUND_SECONDS)
    return rate, batches * engine.max_batch_size


def main(
    *,
    bundle: Annotated[Path, typer.Option()],
    runs: int = 20,
    size: Annotated[int | None, typer.Option(help="Only this number of labels.")] = None,
) -> None:
    """Measures requests by the number of labels."""
    if size is not None:
        settings = Settings(bundle=bundle, device="cpu", label_store="memory")
        asyncio.run(measure(open_pipeline(settings), size, runs))
        return
    card = load_bundle(bundle).card
    print(f"{card.name} {card.version}, one request at a time, {LABELS_PER_RUN} labels a run\n")
    print("| labels | median ms | 95 % ms | photos/s (of the bare sessions) | peak MiB |")
    print("|---|---|---|---|---|", flush=True)
    for count in SIZES:
        command = [sys.executable, "-m", "tests.benchmarks.labels", "--size", str(count)]
        subprocess.run([*command, "--bundle", str(bundle), "--runs", str(runs)], check=True)


if __name__ == "__main__":
    typer.run(main)
