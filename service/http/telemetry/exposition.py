"""Exposition: the metrics as text, for whoever scrapes them.

In: `Metrics`. Out: the text of `/metrics`, or a port of its own that nobody else is shown. With
`PROMETHEUS_MULTIPROC_DIR` set, any worker answers for all that share the folder.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from service.errors import StartError
from service.http.host import PipelineHost
from service.http.telemetry.metrics import Metrics
from service.settings import Settings

SAMPLE_SECONDS = 0.5
_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

logger = logging.getLogger(__name__)


def make_metrics() -> Metrics:
    """Returns the metrics of an app.

    Raises:
        StartError: the folder to share them in is not there.
    """
    folder = os.environ.get(_FOLDER_VARIABLE)
    if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
        raise StartError(f"{_FOLDER_VARIABLE} {folder}: no folder that can be written to")
    return Metrics()


def open_registry(metrics: Metrics) -> CollectorRegistry:
    """Returns what to expose: of this process, or of all that share the folder."""
    folder = os.environ.get(_FOLDER_VARIABLE)
    if folder is None:
        # Of several processes, these would tell of the one that happens to answer.
        ProcessCollector(registry=metrics.registry)
        PlatformCollector(registry=metrics.registry)
        GCCollector(registry=metrics.registry)
        return metrics.registry
    registry = CollectorRegistry()
    MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
    return registry


async def keep_sampling(metrics: Metrics, host: PipelineHost) -> None:
    """Samples for as long as it is not cancelled."""
    while True:
        try:
            metrics.sample(host)
            _forget_dead_processes()
        except Exception:
            logger.exception("sampling the metrics failed")
        await asyncio.sleep(SAMPLE_SECONDS)


@contextmanager
def open_own_port(settings: Settings, metrics: Metrics) -> Iterator[None]:
    """Answers with the metrics on `metrics_port` meanwhile, where it is set.

    Raises:
        StartError: the port cannot be had.
    """
    if settings.metrics_port is None:
        yield
        return
    try:
        server, thread = start_http_server(
            settings.metrics_port, settings.host, open_registry(metrics)
        )
    except OSError as error:
        reason = error.strerror or "it cannot be opened"
        raise StartError(f"metrics_port {settings.metrics_port}: {reason}") from error
    logger.info("metrics", extra={"address": settings.host, "port": server.server_port})
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _forget_dead_processes() -> None:
    """Drops the present values of workers that have ended, however they did."""
    folder = os.environ.get(_FOLDER_VARIABLE)
    if folder is None:
        return
    for file in Path(folder).glob("gauge_live*_*.db"):
        process = file.stem.rpartition("_")[2]
        if process.isdecimal() and not _is_alive(int(process)):
            with suppress(FileNotFoundError):  # another worker was quicker
                mark_process_dead(process, folder)  # type: ignore[no-untyped-call]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
