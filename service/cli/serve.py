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
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from service.engine.devices import may_use_gpu
from service.errors import BundleError, StartError
from service.http.telemetry.logs import configure_logs
from service.pipeline.loading import Graphs, open_graphs
from service.scheduling.cpu import count_processes, divide_cores
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
    workers = _count_workers(settings)
    if workers == 1 and not settings.shared_engine:
        _serve(settings, open_graphs)
    else:
        with _share_state(settings) as (shared, folders):
            _supervise(workers, shared, folders, open_graphs)


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
    workers: int,
    settings: Settings,
    folders: Sequence[str],
    open_graphs: Callable[[Settings], Graphs],
) -> None:
    gc.disable()
    # Before the fork, so that workers share it.
    from service.engine.shared_arrays import SharedArrays
    from service.pipeline.loading import open_remote_graphs
    from service.process import server  # noqa: F401
    from service.process.engine_process import run_engine
    from service.process.ports import Ports
    from service.process.workers import Supervisor

    gc.freeze()
    gc.enable()
    ports = Ports(settings, shared=True)
    shares = divide_cores(workers)

    shared_folder, engines = Path(folders[-1]), int(settings.shared_engine)

    def find_socket(number: int) -> Path:
        return shared_folder / f"engine-{(number - 1) % engines}"

    def serve(worker: Worker) -> None:
        def open_shared(settings: Settings) -> Graphs:
            arrays = SharedArrays(shared_folder, worker.number)
            if not engines:
                return replace(open_graphs(settings), arrays=arrays)
            address = find_socket(worker.number)
            return open_remote_graphs(settings, address, arrays, worker.is_stopping)

        share = shares[worker.number - 1]
        share.pin()
        threads = {
            "intra_op_threads": settings.intra_op_threads or share.count,
            "decode_threads": settings.decode_threads or share.count,
        }
        _serve(settings.model_copy(update=threads), open_shared, worker)
        clean_up(worker)

    def serve_engine(worker: Worker) -> None:
        run_engine(settings, open_graphs, find_socket(worker.number - workers), worker)
        clean_up(worker)

    def clean_up(worker: Worker) -> None:
        if worker.is_orphan():  # the supervisor was killed, before it removed them
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)

    Supervisor(workers, ports, serve, engines=engines, run_engine=serve_engine).run()


def _count_workers(settings: Settings) -> int:
    if settings.workers == "auto":
        alone = sys.platform != "linux" or may_use_gpu(settings.device)
        return 1 if alone else count_processes()
    if settings.workers > 1 and sys.platform != "linux":
        raise StartError(f"workers must be 1 on this system; it is {settings.workers}")
    return settings.workers


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
