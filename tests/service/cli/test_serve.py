"""How serving starts; `tests/e2e` has what it serves."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import service.pipeline.pipeline
from service.cli import serve as serving
from service.cli.folders import Folder
from service.cli.serve import serve_model
from service.errors import StartError
from service.pipeline.loading import Graphs, open_graphs
from service.pipeline.pipeline import Pipeline
from service.pipeline.served import OpenPipeline
from service.process import server
from service.process.plan import Plan
from service.scheduling.cpu import CoreShare
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


def test_server_gets_the_graphs_that_were_opened_during_imports_and_then_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs, pipeline = object.__new__(Graphs), object.__new__(Pipeline)
    opened, got = list[Settings](), list[object]()

    def run_server(settings: Settings, open_pipeline: OpenPipeline, _worker: None) -> None:
        got.extend([open_pipeline(settings), len(opened), open_pipeline(settings), len(opened)])
        got.append(gc.isenabled())

    def open_it(settings: Settings) -> Graphs:
        opened.append(settings)
        return graphs

    def build(settings: Settings, opened_graphs: Graphs) -> Pipeline:
        assert (settings, opened_graphs) == (opened[0], graphs)
        return pipeline

    monkeypatch.setattr(server, "run_server", run_server)
    monkeypatch.setattr(service.pipeline.pipeline, "open_pipeline", build)
    settings = Settings(label_store="memory", workers=1, intra_op_threads=3, decode_threads=2)
    serve_model(settings, open_it)
    assert got == [pipeline, 1, pipeline, 2, True]


def test_error_of_opening_the_graphs_reaches_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_settings: Settings) -> Graphs:
        raise StartError("no such device")

    monkeypatch.setattr(server, "run_server", lambda settings, wait, _: wait(settings))
    with pytest.raises(StartError, match="no such device"):
        serve_model(Settings(label_store="memory", workers=1), fail)


def test_workers_share_a_label_store_instead_of_memory_and_a_folder_of_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    with serving._share_state(Settings(label_store=":memory:")) as (shared, removed):
        folders = [
            Path(str(shared.label_store)).parent,
            Path(os.environ.pop("PROMETHEUS_MULTIPROC_DIR")),
        ]
        assert all(folder.is_dir() for folder in folders)
        assert {str(folder) for folder in folders} == {folder.path for folder in removed}
    assert not any(folder.exists() for folder in folders)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "mine")
    with serving._share_state(Settings(label_store="a.db")) as (shared, _):
        assert (shared.label_store, os.environ["PROMETHEUS_MULTIPROC_DIR"]) == ("a.db", "mine")


def test_workers_that_fit_on_the_gpu_share_the_cores_and_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = iter([1000, 700])
    monkeypatch.setattr(serving, "read_free_bytes", lambda _gpu: next(free))
    settings = Settings(label_store="memory")
    plan = Plan(8, [CoreShare(1)] * 8, ["GPU-a"], on_gpu=True)
    processes = serving._Processes(plan, settings, [], open_graphs)
    count = serving._measure_gpu(processes)
    assert count is not None
    assert count() == processes.plan.workers == len(processes.plan.shares) == 2
    held = processes.plan.adapt_settings(1, settings).max_held_bytes
    assert held == settings.max_held_bytes // 2


def test_limits_that_count_for_each_worker_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "mine")
    monkeypatch.setattr(serving, "_supervise", lambda _processes: None)
    serve_model(Settings(label_store="memory", workers=2, rate_limit="9/s"))
    assert "rate_limit counts for each of the 2 workers: divide by them" in caplog.text


def test_worker_sees_its_gpu_before_the_model_opens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus, shares = ["GPU-1", "GPU-2"], [CoreShare(1)] * 4
    plan, opened = Plan(4, shares, gpus, on_gpu=True), list[str | None]()

    def note(*_: object) -> None:
        opened.append(os.environ.get("CUDA_VISIBLE_DEVICES"))

    monkeypatch.setattr(serving, "_serve", note)
    processes = serving._Processes(plan, Settings(), [Folder(str(tmp_path), 0)], note)  # type: ignore[arg-type]
    processes.serve(SimpleNamespace(number=4, is_orphan=bool))  # type: ignore[arg-type]
    assert opened == ["GPU-2"]
