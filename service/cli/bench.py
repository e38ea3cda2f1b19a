"""Bench: a small load generator: photos against a running service, figures back.

In: an address, photos, how many clients, how long. Out: a `Load`: answers a second, latencies,
errors by kind. Each client sends its next photo when it has the answer to the last, so the service
sets the pace. The clients take processor time of their own: on the service's machine they slow it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from ml_decoder_client import (
    AsyncClient,
    ClientError,
    Question,
    ServiceProblem,
    UnreadableAnswer,
)
from service.cli.load import Load
from service.errors import StartError

SAMPLE = Path(__file__).parents[1] / "http" / "page" / "samples" / "chelsea.jpg"


@dataclass(frozen=True)
class Plan:
    """What to send.

    Attributes:
        url: address of the service.
        photos: contents of image files, sent in turn; client i begins with photo i.
        clients: how many send at once.
        seconds: how long new photos are sent; the last answers are waited for.
        api_key: sent with every request.
        label_sets: asked for; none asks for the service's default.
    """

    url: str
    photos: Sequence[bytes]
    clients: int
    seconds: float
    api_key: str | None = None
    label_sets: Sequence[str] = ()


def run_bench(plan: Plan) -> Load:
    """Sends photos for a while and returns the figures.

    Raises:
        StartError: the address, the key or a label set is none, or the first photo, which is not
            counted, was not answered.
    """
    try:
        return asyncio.run(_measure_load(plan))
    except UnicodeEncodeError as error:
        raise StartError(f"invalid label set name {error.object!a}") from error
    except ClientError as error:
        raise StartError(str(error)) from error


async def _measure_load(plan: Plan) -> Load:
    load = Load()
    question: Question = {"label_set": list(plan.label_sets)} if plan.label_sets else {}
    async with _open_client(plan) as service:
        await service.predict(plan.photos[0], **question)
        started = time.perf_counter()

        async def send(first: int) -> None:
            for photo in islice(cycle(plan.photos), first % len(plan.photos), None):
                sent = time.perf_counter()
                if sent - started >= plan.seconds:
                    return
                try:
                    await service.predict(photo, **question)
                    load.latencies_ms.append((time.perf_counter() - sent) * 1000)
                except ClientError as error:
                    load.errors[_name(error)] += 1

        await asyncio.gather(*(send(i) for i in range(plan.clients)))
        load.seconds = time.perf_counter() - started
    return load


def _open_client(plan: Plan) -> AsyncClient:
    try:
        return AsyncClient(plan.url, api_key=plan.api_key, retries=0, connections=plan.clients)
    except ValueError as error:
        raise StartError(str(error)) from error


def _name(error: ClientError) -> str:
    if isinstance(error, ServiceProblem):
        return error.code or str(error.status)
    return "unreadable" if isinstance(error, UnreadableAnswer) else "unreachable"
