"""Exposition: samples the metrics and serves them as text, on `/metrics` or on a port of its own.

With `PROMETHEUS_MULTIPROC_DIR` set, any worker process answers for all that share this folder.
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
        StartError: the shared folder is missing or read-only.
    """
    folder = os.environ.get(_FOLDER_VARIABLE)
    if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
        raise StartError(f"{_FOLDER_VARIABLE} must be an existing, writable folder; it is {folder}")
    return Metrics()


def open_registry(metrics: Metrics) -> CollectorRegistry:
    """Returns the registry to expose: of this process, or of all that share the folder."""
    folder = os.environ.get(_FOLDER_VARIABLE)
    if folder is None:
        # With several processes, these would describe only the one that answers.
        ProcessCollector(registry=metrics.registry)
        PlatformCollector(registry=metrics.registry)
        GCCollector(registry=metrics.registry)
        return metrics.registry
    registry = CollectorRegistry()
    MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
    return registry


async def keep_sampling(metrics: Metrics, host: PipelineHost) -> None:
    """Samples the metrics until it is cancelled."""
    while True:
        try:
            metrics.sample(host)
            _mark_dead_processes()
        except Exception:
            logger.exception("sampling the metrics failed")
        await asyncio.sleep(SAMPLE_SECONDS)


@contextmanager
def open_own_port(settings: Settings, metrics: Metrics) -> Iterator[None]:
    """Serves the metrics on `metrics_port`, if it is set, during the context.

    Raises:
        StartError: the port cannot be opened.
    """
    port = settings.metrics_port
    if port is None:
        yield
        return
    try:
        server, thread = start_http_server(port, settings.host, open_registry(metrics))
    except OSError as error:
        reason = error.strerror or "cannot be opened"
        raise StartError(f"metrics_port {port}: {reason}") from error
    logger.info("metrics", extra={"address": settings.host, "port": server.server_port})
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _mark_dead_processes() -> None:
    """Removes the gauges of workers that have ended, killed ones too."""
    folder = os.environ.get(_FOLDER_VARIABLE)
    if folder is None:
        return
    for file in Path(folder).glob("gauge_live*_*.db"):
        process = file.stem.rpartition("_")[2]
        if process.isdecimal() and not _is_alive(int(process)):
            with suppress(FileNotFoundError):  # another worker did it first
                mark_process_dead(process, folder)  # type: ignore[no-untyped-call]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return True
