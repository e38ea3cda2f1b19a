"""Figures of a checkpoint on labelled photos; mistakes are one line."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from models.checkpoints.checkpoint import write_checkpoint
from models.config import ZeroShotMLDecoderConfig
from models.evaluate import main
from tests.export.tiny_network import ENCODER_WIDTH, LABELS, make_network, write_folder

Evaluate = Callable[..., dict[str, float]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos") / "colours")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "tiny.safetensors", make_network(), LABELS, {})
    return tmp_path / "tiny.safetensors"


@pytest.fixture
def evaluate(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> Evaluate:
    """Runs the command and reads its figures."""

    def run(folder: Path, *flags: str) -> dict[str, float]:
        capsys.readouterr()
        assert main(["--checkpoint", str(checkpoint), "--data", str(folder), *flags]) == 0
        lines = capsys.readouterr().out.splitlines()
        return {line[:20].strip(): float(line[20:]) for line in lines}

    return run


def test_figures_do_not_depend_on_the_order_of_the_folders_labels(
    folder: Path, tmp_path: Path, evaluate: Evaluate
) -> None:
    figures = evaluate(folder)
    assert {"mAP", "CF1", "OF1", "top-3 CF1", "top-3 OF1", *LABELS} <= figures.keys()
    assert evaluate(write_folder(tmp_path / "photos", LABELS)) == figures


def test_hints_change_the_figures(folder: Path, evaluate: Evaluate) -> None:
    measure = partial(evaluate, folder, "--plain-pixels")
    assert measure() not in (evaluate(folder), measure("--pad", "black"))
    assert measure("--single-label").keys() == {"top-1 accuracy", "top-5 accuracy"}


def test_other_labels_and_none_of_its_own_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, opened = tmp_path / "own.safetensors", tmp_path / "open.safetensors"
    write_checkpoint(other, make_network(), ("blue", "green", "violet"), {})
    head = ZeroShotMLDecoderConfig(encoder_width=ENCODER_WIDTH, embedding_width=8)
    write_checkpoint(opened, make_network(head=head), (), {})
    for path, reason in (other, "'red' is in one only"), (opened, "no labels of its own"):
        assert main(["--checkpoint", str(path), "--data", str(folder)]) == 2
        assert reason in capsys.readouterr().err


def test_mistakes_are_one_line(
    checkpoint: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, gone = ["--checkpoint", str(checkpoint), "--data", str(folder)], str(folder / "gone")
    for bad in ("--checkpoint", gone), ("--data", gone), ("--split", "dev"):
        assert main([*good, *bad]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
