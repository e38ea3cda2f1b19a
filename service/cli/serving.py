"""Serving: the model opens while the server is imported.

In: settings. Out: a server that answers until SIGTERM. Next: `http/server.py`.
"""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

from service.http.hosting import OpenPipeline
from service.logs import configure_logs
from service.pipeline import open_pipeline
from service.settings import Settings


def serve_model(settings: Settings, open_pipeline: OpenPipeline = open_pipeline) -> None:
    """Serves until SIGTERM or Ctrl+C; returns after an orderly stop.

    Args:
        settings: what to serve, and where.
        open_pipeline: makes the pipeline of the settings.

    Raises:
        StartError: the service cannot start as configured.
        BundleError: the bundle is absent, damaged or inconsistent.
        ServiceBroken: it broke while it ran.
    """
    configure_logs(settings.log_level, settings.log_format)
    with ThreadPoolExecutor(1, thread_name_prefix="open") as opener:
        opening = opener.submit(open_pipeline, settings)
        # Only here: to import FastAPI takes as long as to open the graphs, which needs little
        # Python. Both make what stays (`__main__.py`).
        gc.disable()
        from service.http.server import run_server

        gc.enable()
        run_server(settings, lambda _settings: opening.result())
