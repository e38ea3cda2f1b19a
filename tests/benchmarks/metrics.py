"""What metrics cost a request: the same app with and without them, in turns.

In: a bundle (default: a tiny one, whose own work is next to nothing). Out: the median request of
each, and their difference as a share of it and of a prediction of `--of` milliseconds. On a machine
that is busy with other things only the first share means something. Run by hand:
`python -m tests.benchmarks.metrics`. Both apps live in one process and answer in turns, so that
whatever else the machine does hits both; with `PROMETHEUS_MULTIPROC_DIR` set, the files that
workers share are what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI

from service.http.app import create_app
from service.http.host import PipelineHost
from service.http.telemetry.access import Access
from service.settings import Settings
from tests.support.photos import make_photo
from tests.support.tiny_bundle import write_tiny_bundle

WARM_UP = 200
Call = Callable[[], Awaitable[float]]


async def open_app(bundle: Path, *, counted: bool) -> FastAPI:
    """Returns an app whose pipeline is open; one that is not counted has no metrics at all."""
    host = PipelineHost(Settings(bundle=bundle, device="cpu", label_store="memory"))
    app = create_app(host)
    if not counted:
        host.watchers.clear()
        (access,) = [layer for layer in app.user_middleware if layer.cls is Access]  # type: ignore[comparison-overlap]
        access.kwargs["metrics"] = None
    await host.open()
    return app


def make_call(app: FastAPI, photo: bytes) -> Call:
    """Returns what sends one prediction through the whole app and returns its seconds."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/predict",
        "query_string": b"",
        "headers": [(b"content-type", b"image/png")],
    }

    async def call() -> float:
        sent: list[MutableMapping[str, Any]] = []
        waiting = asyncio.Event()
        body = iter([{"type": "http.request", "body": photo}])

        async def receive() -> MutableMapping[str, Any]:
            message = next(body, None)
            if message is None:
                await waiting.wait()
            assert message is not None
            return message

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        started = time.perf_counter()
        await app(dict(scope), receive, send)
        seconds = time.perf_counter() - started
        assert sent[0]["status"] == 200
        return seconds

    return call


async def measure(bundle: Path, pairs: int) -> tuple[list[float], list[float]]:
    """Returns the seconds of `pairs` requests with metrics, and of as many without."""
    photo = make_photo()
    apps = [await open_app(bundle, counted=counted) for counted in (True, False)]
    calls = [make_call(app, photo) for app in apps]
    seconds: tuple[list[float], list[float]] = ([], [])
    gc.disable()
    for pair in range(WARM_UP + pairs):
        for which in (0, 1) if pair % 2 else (1, 0):
            took = await calls[which]()
            if pair >= WARM_UP:
                seconds[which].append(took)
    gc.enable()
    for app in apps:
        await app.state.host.drain()
    return seconds


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--of", type=float, default=5.0, help="milliseconds of a prediction")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = arguments.bundle or write_tiny_bundle(Path(folder)).path
        on, off = asyncio.run(measure(bundle, arguments.pairs))
    middle_on, middle_off = np.median(on) * 1e6, np.median(off) * 1e6
    paired = np.median(np.array(on) - np.array(off)) * 1e6
    print(f"with metrics {middle_on:.1f} us, without {middle_off:.1f} us (medians)")
    share = paired / middle_off * 100
    print(f"median of the differences {paired:.1f} us, {share:.2f} % of such a request")
    print(f"{paired / arguments.of / 10:.2f} % of a prediction of {arguments.of:g} ms")


if __name__ == "__main__":
    main()
