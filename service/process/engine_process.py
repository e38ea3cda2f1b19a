"""The process of an engine that workers share."""

from collections.abc import Callable
from pathlib import Path

from service.engine.engine import Engine
from service.engine.engine_server import EngineServer
from service.pipeline.loading import Graphs
from service.pipeline.pipeline import bound_run
from service.process.connections import raise_file_limit
from service.process.workers import Worker
from service.scheduling.cpu import set_thread_scheduling
from service.settings import Settings


def run_engine(
    settings: Settings, open_graphs: Callable[[Settings], Graphs], address: Path, worker: Worker
) -> None:
    """Serves the engine of a bundle at a socket until all that use it have ended.

    Raises `StartError` or `BundleError` if it cannot start.
    """
    raise_file_limit()  # each channel and shared matrix has a file
    graphs = open_graphs(settings)
    engine = graphs.engine
    assert isinstance(engine, Engine)
    set_thread_scheduling()
    server = EngineServer(engine, graphs.bundle, address, bound_run(engine, settings))
    worker.report_ready()
    server.serve(worker.link)
