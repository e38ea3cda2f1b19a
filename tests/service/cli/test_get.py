"""`ml-decoder get`: what it refuses, what it says first, and the environment that it makes."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.cli import get
from tests.service.cli.conftest import Run, assert_refused
from tests.support.tiny_bundle import tiny_card, write_tiny_bundle

Commands = list[list[str]]


@pytest.fixture(autouse=True)
def _space(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with room for each model, whatever the machine has."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10_000_000_000))


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The commands that `get` runs; each succeeds."""
    seen: Commands = []

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        seen.append([str(part) for part in command])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("service.engine.devices.may_use_gpu", lambda _: False)
    monkeypatch.setattr("service.engine.devices.multiplies_int8", lambda: True)
    return seen


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(get, "_CHECKOUT", tmp_path)
    monkeypatch.setattr(get, "can_export", lambda: False)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / get._ENVIRONMENT).mkdir()
    return tmp_path


def test_models_are_listed_and_an_unknown_name_has_the_closest(run: Run) -> None:
    code, table, _ = run("get", "--list")
    assert code == 0
    lines = table.splitlines()
    for name, model in get.MODELS.items():
        words = [name, model.hub, model.license, f"{model.download_mb:,}", f"{model.bundle_mb:,}"]
        assert [line.split() for line in lines].count(words) == 1
    assert max(map(len, lines)) <= 80
    code, again, error = run("get", "siglip-base")
    assert (code, again, "did you mean siglip2-base?" in error) == (2, table, True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["ram-plus"], "--from needs a folder with ram_plus_swin_large_14m.pth of xinyu1205/"),
        (["siglip2-base", "--from", "nowhere"], "--from: no folder nowhere"),
    ],
)
def test_files_that_are_missing_are_named(
    run: Run, commands: Commands, arguments: list[str], reason: str
) -> None:
    assert_refused(run, reason, "get", *arguments)
    assert not commands


def test_ready_bundle_is_found_and_another_or_damaged_one_refused(
    run: Run, tmp_path: Path, commands: Commands
) -> None:
    card = tiny_card("tiny")
    origin = card.provenance.model_copy(update={"training_data": get.MODELS["siglip2-base"].hub})
    path = write_tiny_bundle(tmp_path, card.model_copy(update={"provenance": origin})).path
    code, out, error = run("get", "siglip2-base", "--out", path)
    assert (code, out) == (0, f"ml-decoder serve --bundle {path}\n")
    assert (error, commands) == (f"{path} is ready\n", [])
    assert_refused(run, "is a bundle of another model", "get", "clip-vit-l-14", "--out", path)
    arguments = ("--out", path, "--background", tmp_path)
    assert_refused(run, "is ready, without a background", "get", "siglip2-base", *arguments)
    next(path.glob("*.onnx")).write_bytes(b"damaged")
    assert_refused(run, "must have", "get", "siglip2-base", "--out", path)


def test_environment_is_made_once_and_again_for_a_newer_project(
    run: Run, checkout: Path, commands: Commands
) -> None:
    arguments = ("get", "siglip2-base", "--out", checkout / "b", "--background", checkout)
    code, out, error = run(*arguments)
    assert (code, out) == (0, f"ml-decoder serve --bundle {checkout / 'b'}\n")
    assert "licence Apache-2.0" in error
    assert "6,000 MB; less if pip finds torch for CPUs" in error
    python = str(checkout / ".venv-export" / "bin" / "python")
    assert commands[0] == [sys.executable, "-m", "venv", str(checkout / ".venv-export")]
    assert commands[1][:4] == [python, "-m", "pip", "install"]
    assert commands[1][-1] == f"{checkout}[export]"
    assert commands[2][:4] == [python, "-P", "-m", "export"]
    wanted = {"--checkpoint=hf-hub:google/siglip2-base-patch16-256", "--precision=fp32,int8"}
    assert wanted <= set(commands[2])
    run(*arguments)
    assert len(commands) == 4
    (checkout / ".venv-export" / ".installed").unlink()
    run(*arguments)
    assert len(commands) == 7


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (1, "is unfinished, see above: repeat the command"),
        (2, "no bundle, see above; without the hub, give --from a folder with config.json, model."),
        (-9, "no bundle, killed: too little memory"),
    ],
)
def test_failed_step_is_one_line(
    run: Run, checkout: Path, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    monkeypatch.setattr(get, "can_export", lambda: code != 1)
    monkeypatch.setattr(subprocess, "run", lambda c: subprocess.CompletedProcess(c, code))
    exit_code, out, error = run("get", "siglip2-base", "--out", checkout / "b")
    assert (exit_code, out, reason in error.splitlines()[-1]) == (2, "", True)
    assert not (checkout / ".venv-export" / ".installed").exists()


def test_full_disk_is_refused_first(
    run: Run, commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=5_000_000))
    error = run("get", "siglip2-base", "--out", tmp_path / "b")[2]
    assert ("has 5 MB free, and this takes 1,501" in error, commands) == (True, [])
