"""Runs every code block of README and docs in order.

Each document gets its own folder with the files that its snippets name; a service with the default
bundle replaces `localhost:8000`.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models.checkpoints.checkpoint import write_checkpoint
from tests.e2e.server_process import ROOT, ServerProcess
from tests.export.tiny_network import LABELS, make_network, write_folder
from tests.project.snippets import Snippet, read_commands, read_snippets

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    snippet
    for document in DOCUMENTS
    for snippet in read_snippets(document, str(document.relative_to(ROOT)))
]
RUN = {"console", "python", "typescript"}
PARSED = {"json"}
DRAWN = {"mermaid", "text"}
SECONDS = 240
# int8 rounds differently on other processors.
TOLERANCE = 0.03


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of one service for all documents."""
    command = ("serve", "--port", "0", "--device", "cpu", "--label-store", "memory")
    with ServerProcess(*command) as server:
        with server.open_client() as client:
            address = str(client.base_url).rstrip("/")
        yield address


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the documents' folders."""
    return tmp_path_factory.mktemp("documents")


def lay_out(folder: Path) -> None:
    """Provides the files of the snippets: docs, a checkpoint, a labelled folder, the commands."""
    if folder.exists():
        return
    folder.mkdir()
    for name in ("docs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "bundles").mkdir()
    for bundle in (ROOT / "bundles").iterdir():
        (folder / "bundles" / bundle.name).symlink_to(bundle)
    write_folder(folder / "FOLDER", LABELS)
    facts = {"training_data": "coloured noise"}
    write_checkpoint(folder / "model.safetensors", make_network(), LABELS, facts)
    (folder / "bin").mkdir()
    for name, arguments in (("python", ""), ("ml-decoder", "-m service.cli ")):
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        command.chmod(0o755)


def run_snippet(snippet: Snippet, folder: Path, url: str) -> str:
    """Runs a block and returns its output; curl fails on every error status."""
    code = snippet.code.replace("localhost:8000", url.removeprefix("http://"))
    code = code.replace("Client()", f'Client("{url}")')
    if snippet.language == "python":
        command = [sys.executable, "-c", code]
    elif snippet.language == "typescript":
        script = folder / "snippet.mts"
        script.write_text(code)
        command = ["node", str(script)]
    else:
        strict = 'set -euo pipefail\ncurl() { command curl --fail-with-body -sS "$@"; }\n'
        command = ["bash", "-c", strict + read_commands(code)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ML_DECODER_")}
    environment |= {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}",
        "XDG_STATE_HOME": str(folder / "state"),
        "ML_DECODER_DEVICE": "cpu",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, f"{snippet.place}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def runs_typescript() -> bool:
    if shutil.which("node") is None:
        return False
    version = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout
    major, minor, *_ = version.strip().removeprefix("v").split(".")
    return (int(major), int(minor)) >= (22, 18)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.place)
def test_snippet_prints_what_it_shows(snippet: Snippet, root: Path, url: str) -> None:
    if snippet.reason is not None:
        pytest.skip(snippet.reason)
    if snippet.language in PARSED:
        json.loads(snippet.code)
        return
    if snippet.language in DRAWN:
        return
    assert snippet.language in RUN, f"{snippet.place}: name the language, or what cannot be run"
    if shutil.which("curl") is None and "curl" in snippet.code:
        pytest.skip("no curl")
    if snippet.language == "typescript" and not runs_typescript():
        pytest.skip("no Node.js of 22.18 or later")
    folder = root / snippet.place.split(":")[0].replace("/", "_")
    lay_out(folder)
    printed = run_snippet(snippet, folder, url)
    if snippet.answers is not None:
        assert_same_answer(json.loads(printed), json.loads(snippet.answers))


def assert_same_answer(real: dict[str, Any], shown: dict[str, Any]) -> None:
    """Compares answers of `/predict`, except for timings and request ids."""
    assert real.keys() == shown.keys()
    assert real["timings"].keys() == shown["timings"].keys()
    for name in ("model", "label_set", "label_sets", "image"):
        assert real[name] == shown[name]
    for ours, theirs in zip(real["labels"], shown["labels"], strict=True):
        assert ours.keys() >= theirs.keys()
        numbers = {
            name: pytest.approx(ours[name], abs=TOLERANCE) for name in ("score", "threshold")
        }
        assert {**theirs, **numbers} == theirs


def test_every_document_is_read() -> None:
    assert any(snippet.answers for snippet in SNIPPETS)
    for document in DOCUMENTS:
        count = document.read_text().count("\n```") // 2
        name = str(document.relative_to(ROOT))
        assert sum(snippet.place.startswith(f"{name}:") for snippet in SNIPPETS) == count
