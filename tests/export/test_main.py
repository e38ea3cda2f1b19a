from __future__ import annotations

from pathlib import Path

import pytest

from export.__main__ import main
from service.bundle import load_bundle


def _run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str]]:
    code = main([str(argument) for argument in arguments])
    return code, capsys.readouterr().err.splitlines()


def test_export_tells_its_story_and_writes_a_bundle(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tiny"
    code, lines = _run(capsys, "--checkpoint", checkpoint, "--out", out, "--precision", "fp32")
    assert code == 0
    assert lines[0] == "read test_efficientnet with 3 labels"
    assert lines[-1] == f"wrote {out}"
    assert load_bundle(out).precisions() == ("fp32",)


def test_mistakes_are_one_line_and_write_nothing(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tiny"
    mistakes: list[tuple[tuple[object, ...], str]] = [
        (("--checkpoint", tmp_path / "gone.pth"), "no checkpoint file"),
        (("--checkpoint", checkpoint, "--photos", tmp_path / "gone"), "neither labels.json"),
        (("--checkpoint", checkpoint, "--precision", "fp32,int8"), "int8 needs labelled photos"),
        (("--checkpoint", checkpoint, "--label-names", tmp_path / "gone"), "cannot be read"),
    ]
    for arguments, reason in mistakes:
        code, lines = _run(capsys, *arguments, "--out", out)
        assert code == 2
        assert lines[-1].startswith("error: ")
        assert reason in lines[-1]
        assert not out.exists()


def test_unknown_precision_is_refused_by_name(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        _run(capsys, "--checkpoint", checkpoint, "--out", tmp_path / "a", "--precision", "int4")
    assert stopped.value.code == 2
    assert "'int4' is not one of fp32, fp16, int8" in capsys.readouterr().err
