"""What metrics cost a request: the same app with and without them, in turns in one process.

    python -m tests.benchmarks.metrics

Prints the median request of each and their difference, as a share of the request and of a
prediction of `--of` milliseconds. The default bundle is a tiny one with next to no work of its own.
With `PROMETHEUS_MULTIPROC_DIR` set, it measures the files that worker processes share.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from fastapi import FastAPI

from service.http.app import create_app
from service.http.host import PipelineHost
from service.http.telemetry.access import Access
from service.settings import Settings
from tests.support.photos import make_photo
from tests.support.tiny_bundle import write_tiny_bundle

WARM_UP = 200
Call = Callable[[], Awaitable[float]]


class _NoMetrics:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


async def open_app(bundle: Path, *, counted: bool) -> FastAPI:
    """Returns an app with an open pipeline, with or without metrics."""
    host = PipelineHost(Settings(bundle=bundle, device="cpu", label_store="memory"))
    app = create_app(host)
    if not counted:
        host.watchers.clear()
        (access,) = [layer for layer in app.user_middleware if layer.cls is Access]  # type: ignore[comparison-overlap]
        access.kwargs["metrics"] = _NoMetrics()
    await host.open()
    return app


def make_call(app: FastAPI, photo: bytes) -> Call:
    """Returns a function that sends one prediction through the app and returns its seconds."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/predict",
        "query_string": b"",
        "headers": [(b"content-type", b"image/png")],
    }

    async def call() -> float:
        sent: list[MutableMapping[str, Any]] = []
        body = iter([{"type": "http.request", "body": photo}])

        async def receive() -> MutableMapping[str, Any]:
            if (message := next(body, None)) is None:
                await asyncio.Event().wait()  # the client stays
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


def main(
    *,
    bundle: Path | None = None,
    pairs: int = 4000,
    of: Annotated[float, typer.Option(help="Milliseconds of a prediction.")] = 5.0,
) -> None:
    """Measures what metrics cost."""
    with tempfile.TemporaryDirectory() as folder:
        path = bundle or write_tiny_bundle(Path(folder)).path
        on, off = (np.array(seconds) * 1e6 for seconds in asyncio.run(measure(path, pairs)))
    print(f"with metrics {np.median(on):.1f} us, without {np.median(off):.1f} us (medians)")
    paired = np.median(on - off)
    share = paired / np.median(off) * 100
    print(f"median of the differences {paired:.1f} us, {share:.2f} % of such a request")
    print(f"{paired / of / 10:.2f} % of a prediction of {of:g} ms")


if __name__ == "__main__":
    typer.run(main)
