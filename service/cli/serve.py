"""`ml-decoder serve`: opens the graphs while it imports the server."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from service.errors import BundleError, StartError
from service.http.telemetry.logs import configure_logs
from service.pipeline.loading import Graphs, open_graphs
from service.settings import Settings


def serve_model(
    settings: Settings, open_graphs: Callable[[Settings], Graphs] = open_graphs
) -> None:
    """Serves until SIGTERM or Ctrl+C; raises ServiceBroken if it cannot go on."""
    configure_logs(settings.log_level, settings.log_format)
    with ThreadPoolExecutor(1, thread_name_prefix="open") as opener:
        opening = opener.submit(open_graphs, settings)
        gc.disable()  # as in `__main__`
        # Importing SQLAlchemy and FastAPI takes as long as opening the graphs, which rarely holds
        # the GIL.
        from service.http.server import run_server
        from service.pipeline.pipeline import build_pipeline

        gc.freeze()
        gc.enable()
        failure = opening.exception() if opening.done() else None
        if isinstance(failure, StartError | BundleError):
            raise failure  # before a port is open
        run_server(settings, lambda settings: build_pipeline(settings, opening.result()))
