"""`ml-decoder serve`: opens the graphs while it imports the server.

With several workers this process imports the server, forks them and supervises them.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.folders import Folder, make_folder, remove_left
from service.engine.shared_arrays import SharedArrays
from service.errors import BundleError, StartError
from service.logs import configure_logs
from service.pipeline.loading import Graphs, open_graphs
from service.process.plan import Plan, plan_workers
from service.scheduling.cpu import divide_cores
from service.scheduling.gpus import count_fitting, read_free_bytes
from service.settings import MIB, Settings

if TYPE_CHECKING:
    from service.pipeline.pipeline import Pipeline
    from service.process.workers import Worker

_MEMORY_FOLDER = "/dev/shm"

OpenGraphs = Callable[[Settings], Graphs]

logger = logging.getLogger(__name__)


def serve_model(settings: Settings, open_graphs: OpenGraphs = open_graphs) -> None:
    """Serves until SIGTERM or Ctrl+C. Raises StartError, BundleError, later ServiceBroken."""
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
        for parent in (_MEMORY_FOLDER, None):
            remove_left(parent)
        _serve(plan.adapt_settings(1, settings), open_graphs)
    else:
        of_worker = [
            name
            for name in ("rate_limit", "max_connections", "max_connections_per_address")
            if getattr(settings, name)
        ]
        if of_worker:
            names, verb = " and ".join(of_worker), "count" if of_worker[1:] else "counts"
            logger.warning(
                "%s %s for each of the %d workers: divide by them, or set workers to 1",
                *(names, verb, plan.workers),
            )
        with _share_state(settings) as (shared, folders):
            _supervise(_Processes(plan, shared, folders, open_graphs))


def _serve(settings: Settings, open_graphs: OpenGraphs, worker: Worker | None = None) -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="open") as opener:
        # Emptied by its use: else the first model would stay in memory after a reload.
        openings = [opener.submit(open_graphs, settings)]
        gc.disable()  # as in `__main__`
        # Importing SQLAlchemy and FastAPI takes as long as opening the graphs, which rarely holds
        # the GIL.
        from service.pipeline.pipeline import open_pipeline
        from service.process.server import run_server

        gc.freeze()
        gc.enable()
        failure = openings[0].exception() if openings[0].done() else None
        if isinstance(failure, StartError | BundleError):
            raise failure  # before a port is open

        def open_next(settings: Settings) -> Pipeline:
            graphs = openings.pop().result() if openings else open_graphs(settings)
            return open_pipeline(settings, graphs)

        run_server(settings, open_next, worker)


@dataclass
class _Processes:
    """What the workers of a service run after the fork; they share `folders`."""

    plan: Plan
    settings: Settings
    folders: Sequence[Folder]
    open_graphs: OpenGraphs

    def serve(self, worker: Worker) -> None:
        """Runs a worker on its cores and its GPU."""
        self.plan.shares[worker.number - 1].pin()
        if gpu := self.plan.find_gpu(worker.number):
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # before ONNX Runtime loads CUDA
        arrays = SharedArrays(Path(self.folders[-1].path), worker.number)

        def open_shared(settings: Settings) -> Graphs:
            return replace(self.open_graphs(settings), arrays=arrays)

        try:
            _serve(self.plan.adapt_settings(worker.number, self.settings), open_shared, worker)
        finally:
            if worker.is_orphan():  # the supervisor was killed, before it removed them
                for folder in self.folders:
                    folder.leave()


def _supervise(processes: _Processes) -> None:
    gc.disable()
    # Before the fork, so that all processes share it.
    from service.process import server  # noqa: F401
    from service.process.ports import Ports
    from service.process.workers import Supervisor

    gc.freeze()
    gc.enable()
    plan = processes.plan
    Supervisor(
        plan.workers,
        Ports(processes.settings, shared=True),
        processes.serve,
        count_fitting=_measure_gpu(processes) if processes.settings.workers == "auto" else None,
    ).run()


def _measure_gpu(processes: _Processes) -> Callable[[], int] | None:
    """Returns a function that counts the workers that fit once worker 1 is ready, or None."""
    plan = processes.plan
    if not plan.gpus:
        return None
    gpu, gpus = plan.gpus[0], len(plan.gpus)
    before = read_free_bytes(gpu)

    def count() -> int:
        after = read_free_bytes(gpu)
        most = math.ceil(plan.workers / gpus)
        workers = min(plan.workers, gpus * count_fitting(before, after, most))
        fields = {"workers": workers, "planned": plan.workers, "gpu_mib": (before - after) // MIB}
        logger.info("counted workers that fit on the GPU", extra=fields)
        processes.plan = replace(plan, workers=workers, shares=divide_cores(workers, pin=False))
        return workers

    return count


@contextmanager
def _share_state(settings: Settings) -> Iterator[tuple[Settings, Sequence[Folder]]]:
    """Gives workers a folder for their metrics, and a file instead of a label store in memory.

    Yields the workers' settings, and the folders, which are removed at the end.
    """
    from service.labels.store.database import is_memory

    parent = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK | os.X_OK) else None
    with make_folder(parent) as metrics, make_folder() as folder:
        folders = metrics, folder
        # Until the supervisor has its own handler. An import could swallow an exception.
        signal.signal(signal.SIGTERM, lambda *_: _abort(folders))
        # prometheus_client reads it when it is imported.
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", metrics.path)
        if is_memory(settings.label_store):
            store = str(Path(folder.path) / "labels.db")
            settings = settings.model_copy(update={"label_store": store})
        yield settings, folders


def _abort(folders: Sequence[Folder]) -> None:
    for folder in folders:
        folder.leave()
    os._exit(128 + signal.SIGTERM)
