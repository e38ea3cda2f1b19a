"""Tests of how serving starts; `tests/e2e` has those of what it serves."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from service.cli.serving import serve_model
from service.errors import StartError
from service.http import server
from service.http.hosting import OpenPipeline
from service.pipeline import Pipeline
from service.settings import Settings


def test_commands_import_no_server() -> None:
    program = "import sys, service.cli.commands; print({'fastapi', 'uvicorn'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_server_gets_what_was_opened_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, opened = object.__new__(Pipeline), list[Settings]()
    got = []

    def run_server(settings: Settings, open_pipeline: OpenPipeline) -> None:
        got.extend([open_pipeline(settings), open_pipeline(settings), gc.isenabled()])

    def open_it(settings: Settings) -> Pipeline:
        opened.append(settings)
        return pipeline

    monkeypatch.setattr(server, "run_server", run_server)
    settings = Settings(label_store="memory")
    serve_model(settings, open_it)
    assert got == [pipeline, pipeline, True]
    assert opened == [settings]


def test_what_keeps_the_model_from_opening_reaches_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_settings: Settings) -> Pipeline:
        raise StartError("no such device")

    monkeypatch.setattr(server, "run_server", lambda settings, wait: wait(settings))
    with pytest.raises(StartError, match="no such device"):
        serve_model(Settings(label_store="memory"), fail)
