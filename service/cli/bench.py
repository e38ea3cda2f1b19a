"""`ml-decoder bench`: sends photos to a running service and measures rate and latencies."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from ml_decoder_client import AsyncClient, ClientError, Question, ServiceProblem, UnreadableAnswer
from service.cli.console import show_pairs
from service.errors import StartError

SAMPLE = Path(__file__).parents[1] / "http" / "page" / "samples" / "chelsea.jpg"


def open_client(url: str, api_key: str | None, clients: int) -> AsyncClient:
    """Returns a client that does not retry. Raises StartError for an invalid argument."""
    try:
        return AsyncClient(url, api_key=api_key, retries=0, connections=clients)
    except ValueError as error:
        raise StartError(str(error)) from error


def run_bench(
    client: AsyncClient,
    photos: Sequence[bytes],
    clients: int,
    seconds: float,
    label_sets: Sequence[str],
) -> dict[str, Any]:
    """Returns rate, latencies and errors as JSON; StartError if the first request fails."""
    question: Question = {"label_set": label_sets} if label_sets else {}
    try:
        return asyncio.run(_measure_load(client, photos, clients, seconds, question))
    except UnicodeEncodeError as error:
        raise StartError(f"invalid label set name {error.object!a}") from error
    except ClientError as error:
        raise StartError(str(error)) from error


def show_load(load: dict[str, Any]) -> None:
    """Shows the result of `run_bench`."""
    values = {
        name.replace("_", " "): json.dumps(value) if isinstance(value, dict) else str(value)
        for name, value in load.items()
    }
    show_pairs(values, justify="right")


async def _measure_load(
    client: AsyncClient, photos: Sequence[bytes], clients: int, seconds: float, question: Question
) -> dict[str, Any]:
    latencies_ms: list[float] = []  # of each success
    errors = Counter[str]()  # by code
    async with client:
        await client.predict(photos[0], **question)
        started = time.perf_counter()

        async def send(first: int) -> None:
            for photo in islice(cycle(photos), first % len(photos), None):
                sent = time.perf_counter()
                if sent - started >= seconds:
                    return
                try:
                    await client.predict(photo, **question)
                    latencies_ms.append((time.perf_counter() - sent) * 1000)
                except ServiceProblem as problem:
                    errors[problem.code or str(problem.status)] += 1
                except UnreadableAnswer:
                    errors["unreadable"] += 1
                except ClientError:
                    errors["unreachable"] += 1

        await asyncio.gather(*map(send, range(clients)))
        elapsed = time.perf_counter() - started
    quantiles = {
        f"p{round(100 * share)}_ms": round(float(np.quantile(latencies_ms, share)), 2)
        for share in (0.5, 0.95, 0.99)
        if latencies_ms
    }
    return {
        "seconds": round(elapsed, 2),
        "answers": len(latencies_ms),
        "answers_per_second": round(len(latencies_ms) / elapsed, 2),
        **quantiles,
        "errors": errors,
    }
