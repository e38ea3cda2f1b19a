"""How serving starts; `tests/e2e` has what it serves."""

import gc
import subprocess
import sys

import pytest

import service.pipeline.pipeline
from service.cli.serve import serve_model
from service.errors import StartError
from service.http import server
from service.http.host import OpenPipeline
from service.pipeline.loading import Graphs
from service.pipeline.pipeline import Pipeline
from service.settings import Settings


def list_imported(module: str, *packages: str) -> set[str]:
    program = f"import sys, {module}; print(*{set(packages)} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return set(done.stdout.split())


def test_commands_import_neither_model_nor_server_and_serve_only_the_model() -> None:
    server = ("sqlalchemy", "fastapi", "uvicorn")
    heavy = ("typer", "numpy", "onnxruntime", *server)
    assert list_imported("service.cli.commands", *heavy) == {"typer"}
    assert list_imported("service.cli.serve", "onnxruntime", *server) == {"onnxruntime"}


def test_server_gets_the_graphs_that_were_opened_during_imports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs, pipeline = object.__new__(Graphs), object.__new__(Pipeline)
    opened, got = list[Settings](), list[object]()

    def run_server(settings: Settings, open_pipeline: OpenPipeline) -> None:
        got.extend([open_pipeline(settings), open_pipeline(settings), gc.isenabled()])

    def open_it(settings: Settings) -> Graphs:
        opened.append(settings)
        return graphs

    def build(settings: Settings, found: Graphs) -> Pipeline:
        assert (settings, found) == (opened[0], graphs)
        return pipeline

    monkeypatch.setattr(server, "run_server", run_server)
    monkeypatch.setattr(service.pipeline.pipeline, "build_pipeline", build)
    settings = Settings(label_store="memory")
    serve_model(settings, open_it)
    assert got == [pipeline, pipeline, True]
    assert opened == [settings]


def test_error_of_opening_the_graphs_reaches_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_settings: Settings) -> Graphs:
        raise StartError("no such device")

    monkeypatch.setattr(server, "run_server", lambda settings, wait: wait(settings))
    with pytest.raises(StartError, match="no such device"):
        serve_model(Settings(label_store="memory"), fail)
