"""`ml-decoder serve`: opens the graphs while it imports the server.

With several workers this process imports the server, forks them and supervises them.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from service.errors import BundleError, StartError
from service.http.telemetry.logs import configure_logs
from service.pipeline.loading import Graphs, open_graphs
from service.process.plan import Plan, plan_workers
from service.settings import Settings

if TYPE_CHECKING:
    from service.process.workers import Worker

_MEMORY_FOLDER = "/dev/shm"

logger = logging.getLogger(__name__)


def serve_model(
    settings: Settings, open_graphs: Callable[[Settings], Graphs] = open_graphs
) -> None:
    """Serves until SIGTERM or Ctrl+C; raises ServiceBroken if it cannot go on."""
    configure_logs(settings.log_level, settings.log_format)
    for flag, keys in (("predict", settings.predict_keys), ("admin", settings.admin_keys)):
        text = "@" if keys is None else keys.get_secret_value()
        if not text.startswith("@") and any(text in argument for argument in sys.argv):
            logger.warning(
                "--%s-keys: other users of this machine can read arguments: use --%s-keys-file",
                *(flag, flag),
            )
    plan = plan_workers(settings)
    if plan.workers == 1:
        _serve(plan.adapt_settings(1, settings), open_graphs)
    else:
        with _share_state(settings) as (shared, folders):
            _supervise(plan, shared, folders, open_graphs)


def _serve(
    settings: Settings, open_graphs: Callable[[Settings], Graphs], worker: Worker | None = None
) -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="open") as opener:
        opening = opener.submit(open_graphs, settings)
        gc.disable()  # as in `__main__`
        # Importing SQLAlchemy and FastAPI takes as long as opening the graphs, which rarely holds
        # the GIL.
        from service.pipeline.pipeline import open_pipeline
        from service.process.server import run_server

        gc.freeze()
        gc.enable()
        failure = opening.exception() if opening.done() else None
        if isinstance(failure, StartError | BundleError):
            raise failure  # before a port is open
        run_server(settings, lambda settings: open_pipeline(settings, opening.result()), worker)


def _supervise(
    plan: Plan,
    settings: Settings,
    folders: Sequence[str],
    open_graphs: Callable[[Settings], Graphs],
) -> None:
    gc.disable()
    from service.pipeline import pipeline  # noqa: F401 - before the fork, so that workers share it
    from service.process import server  # noqa: F401
    from service.process.ports import Ports
    from service.process.workers import Supervisor

    gc.freeze()
    gc.enable()
    ports = Ports(settings, shared=True)
    supervisor = os.getpid()

    def serve(worker: Worker) -> None:
        plan.shares[worker.number - 1].pin()
        if gpu := plan.find_gpu(worker.number):
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu.uuid
        _serve(plan.adapt_settings(worker.number, settings), open_graphs, worker)
        if os.getppid() != supervisor:  # it was killed, before it removed them
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)

    Supervisor(plan.workers, ports, serve).run()


@contextmanager
def _share_state(settings: Settings) -> Iterator[tuple[Settings, Sequence[str]]]:
    """Gives workers a folder for their metrics, and a file instead of a label store in memory.

    Yields the workers' settings, and the folders, which are removed at the end.
    """
    from service.labels.store.database import MEMORY

    # prometheus_client reads the variable when it is imported.
    variable = "PROMETHEUS_MULTIPROC_DIR"
    place = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK | os.X_OK) else None
    make_folder = partial(TemporaryDirectory, prefix="ml-decoder-", ignore_cleanup_errors=True)
    with make_folder(dir=place) as metrics, make_folder() as folder:
        os.environ.setdefault(variable, metrics)
        if settings.label_store == MEMORY:
            store = str(Path(folder) / "labels.db")
            settings = settings.model_copy(update={"label_store": store})
        yield settings, (metrics, folder)
