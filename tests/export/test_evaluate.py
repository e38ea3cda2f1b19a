"""A bundle's figures equal its checkpoint's, and mistakes are one line."""

from pathlib import Path

import pytest

from export.build import ExportRequest, build_bundle
from export.evaluate import main
from export.source import SourceHints
from models.checkpoints import write_checkpoint
from models.network import Network
from tests.export.tiny_network import LABELS, write_folder


def _read(text: str) -> dict[str, float]:
    return {line[:20].strip(): float(line[20:]) for line in text.splitlines()}


def test_a_bundle_is_measured_like_its_checkpoint(
    network: Network, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from models.evaluate import main as evaluate_checkpoint

    folder = write_folder(tmp_path / "photos", LABELS)
    checkpoint = tmp_path / "own.safetensors"
    write_checkpoint(checkpoint, network, LABELS, {})
    bundle = build_bundle(ExportRequest(SourceHints(checkpoint), tmp_path / "model")).path
    assert evaluate_checkpoint(["--checkpoint", str(checkpoint), "--data", str(folder)]) == 0
    expected = _read(capsys.readouterr().out)
    assert main(["--bundle", str(bundle), "--data", str(folder)]) == 0
    found = _read(capsys.readouterr().out)
    assert {"mAP", "CF1", "OF1", "top-3 CF1", "top-3 OF1", *LABELS} <= found.keys()
    assert found == pytest.approx(expected, abs=0.01)


def test_mistakes_are_one_line(
    checkpoint: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = build_bundle(ExportRequest(SourceHints(checkpoint), tmp_path / "model")).path
    good = ["--bundle", str(bundle), "--data", str(folder)]
    for bad in (
        ["--bundle", str(tmp_path / "gone")],
        ["--data", str(tmp_path / "gone")],
        ["--split", "dev"],
        ["--precision", "int8"],
    ):
        assert main([*good, *bad]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
    assert main(good) == 0
