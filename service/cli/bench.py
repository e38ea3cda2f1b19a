"""`ml-decoder bench`: sends photos to a running service and measures rate and latencies.

Each client sends its next photo after the answer to its last. On the service's machine the clients
compete with it for the CPU.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from ml_decoder_client import AsyncClient, ClientError, Question, ServiceProblem, UnreadableAnswer
from service.errors import StartError

SAMPLE = Path(__file__).parents[1] / "http" / "page" / "samples" / "chelsea.jpg"


@dataclass(frozen=True)
class Plan:
    """The requests to send."""

    url: str
    photos: Sequence[bytes]  # image files, sent in turn; client i begins with photo i
    clients: int  # requests in flight
    seconds: float  # for how long requests are started
    api_key: str | None = None
    label_sets: Sequence[str] = ()


@dataclass
class Load:
    """Measurements of one run."""

    seconds: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)  # of each success
    errors: Counter[str] = field(default_factory=Counter)  # by code

    def describe(self) -> dict[str, object]:
        """Returns rate, latencies and errors as JSON values."""
        quantiles = {
            f"p{round(100 * share)}_ms": round(float(np.quantile(self.latencies_ms, share)), 2)
            for share in (0.5, 0.95, 0.99)
            if self.latencies_ms
        }
        return {
            "seconds": round(self.seconds, 2),
            "answers": len(self.latencies_ms),
            "answers_per_second": round(len(self.latencies_ms) / self.seconds, 2),
            **quantiles,
            "errors": dict(self.errors),
        }


def run_bench(plan: Plan) -> Load:
    """Runs the plan after one request that is not counted; StartError if this one fails."""
    try:
        client = AsyncClient(plan.url, api_key=plan.api_key, retries=0, connections=plan.clients)
    except ValueError as error:
        raise StartError(str(error)) from error
    try:
        return asyncio.run(_measure_load(client, plan))
    except UnicodeEncodeError as error:
        raise StartError(f"invalid label set name {error.object!a}") from error
    except ClientError as error:
        raise StartError(str(error)) from error


async def _measure_load(client: AsyncClient, plan: Plan) -> Load:
    load = Load()
    question: Question = {"label_set": list(plan.label_sets)} if plan.label_sets else {}
    async with client:
        await client.predict(plan.photos[0], **question)
        started = time.perf_counter()

        async def send(first: int) -> None:
            for photo in islice(cycle(plan.photos), first % len(plan.photos), None):
                sent = time.perf_counter()
                if sent - started >= plan.seconds:
                    return
                try:
                    await client.predict(photo, **question)
                    load.latencies_ms.append((time.perf_counter() - sent) * 1000)
                except ClientError as error:
                    load.errors[_name(error)] += 1

        await asyncio.gather(*(send(i) for i in range(plan.clients)))
        load.seconds = time.perf_counter() - started
    return load


def _name(error: ClientError) -> str:
    if isinstance(error, ServiceProblem):
        return error.code or str(error.status)
    return "unreadable" if isinstance(error, UnreadableAnswer) else "unreachable"
