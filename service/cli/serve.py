"""Serving: the graphs open while the server is imported.

In: settings. Out: a server that answers until SIGTERM. Next: `http/server.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from service.cli.importing import importing_for_good
from service.errors import BundleError, StartError
from service.http.telemetry.logs import configure_logs
from service.pipeline.loading import Graphs, open_graphs
from service.settings import Settings


def serve_model(
    settings: Settings, open_graphs: Callable[[Settings], Graphs] = open_graphs
) -> None:
    """Serves until SIGTERM or Ctrl+C; returns after an orderly stop.

    Args:
        settings: what to serve, and where.
        open_graphs: opens the graphs of the bundle.

    Raises:
        StartError: the service cannot start as configured.
        BundleError: the bundle is absent, damaged or inconsistent.
        ServiceBroken: it broke while it ran.
    """
    configure_logs(settings.log_level, settings.log_format)
    with ThreadPoolExecutor(1, thread_name_prefix="open") as opener:
        opening = opener.submit(open_graphs, settings)
        # Only here: to import SQLAlchemy and FastAPI takes as long as to open the graphs, which
        # needs little Python.
        with importing_for_good():
            from service.http.server import run_server
            from service.pipeline.pipeline import build_pipeline
        _refuse_failed(opening)
        run_server(settings, lambda settings: build_pipeline(settings, opening.result()))


def _refuse_failed(opening: Future[Graphs]) -> None:
    """Raises what has gone wrong by now: most bad bundles are told before a port is open."""
    failure = opening.exception() if opening.done() else None
    if isinstance(failure, StartError | BundleError):
        raise failure
