from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from export.__main__ import main
from service.bundle.reader import load_bundle
from tests.goldens import read_golden
from tests.models.heads.test_goldens import write_official


def _run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str]]:
    code = main([str(argument) for argument in arguments])
    return code, capsys.readouterr().err.splitlines()


def test_export_logs_its_steps_and_writes_a_bundle(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tiny"
    code, lines = _run(capsys, "--checkpoint", checkpoint, "--out", out, "--precision", "fp32")
    assert code == 0
    assert lines[0] == "read test_efficientnet with 3 labels"
    assert lines[-1] == f"wrote {out}"
    assert load_bundle(out).precisions() == ("fp32",)


def test_export_writes_nothing_and_prints_one_line_after_a_mistake(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tiny"
    mistakes: list[tuple[tuple[object, ...], str]] = [
        (("--checkpoint", tmp_path / "gone.pth"), "no checkpoint file"),
        (("--checkpoint", checkpoint, "--photos", tmp_path / "gone"), "neither labels.json"),
        (("--checkpoint", checkpoint, "--precision", "fp32,int8"), "int8 needs labelled photos"),
        (("--checkpoint", checkpoint, "--label-names", tmp_path / "gone"), "cannot be read"),
        (("--checkpoint", checkpoint, "--num-heads", 8), "has 4 attention heads, not 8"),
    ]
    for arguments, reason in mistakes:
        code, lines = _run(capsys, *arguments, "--out", out)
        assert code == 2
        assert lines[-1].startswith("error: ")
        assert reason in lines[-1]
        assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--label-set", "zoo.json"], "--label-set needs --open-head"),
        (["--text-encoder", "folder"], "--text-encoder needs --open-head"),
        (["--open-photos", "folder"], "--open-photos needs --open-head"),
        (["--open-head", "x", "--open-split", "test"], "--open-split needs --open-photos"),
    ],
)
def test_export_refuses_an_option_that_has_no_effect(
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    reason: str,
) -> None:
    with pytest.raises(SystemExit) as stopped:
        _run(capsys, "--checkpoint", checkpoint, "--out", tmp_path / "a", *arguments)
    assert stopped.value.code == 2
    assert reason in capsys.readouterr().err


def test_export_names_an_unknown_precision(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        _run(capsys, "--checkpoint", checkpoint, "--out", tmp_path / "a", "--precision", "int4")
    assert stopped.value.code == 2
    assert "'int4' is not one of fp32, fp16, int8" in capsys.readouterr().err


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (Path("pwned"), "pwned"))


def test_export_prints_one_line_for_a_bad_checkpoint(
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    golden = read_golden("mld_10_full_7x7_b1")
    write_official(golden, tmp_path / "head.pth")
    decoder = "decoder.layers.0."
    golden.state[f"{decoder}self_attn.in_proj_weight"] = golden.state[
        f"{decoder}multihead_attn.in_proj_weight"
    ]
    write_official(golden, tmp_path / "look-alike.pth")
    (tmp_path / "damaged.pth").write_bytes((tmp_path / "head.pth").read_bytes()[:5000])
    (tmp_path / "cut.safetensors").write_bytes(checkpoint.read_bytes()[:5000])
    torch.save({"model": _Code()}, tmp_path / "code.pth")
    torch.save({"fc.weight": torch.zeros(2, 3)}, tmp_path / "classifier.pth")
    for name, reason in {
        "look-alike.pth": "a look-alike network with vanilla decoder layers",
        "damaged.pth": "damaged",
        "cut.safetensors": "damaged or not a safetensors file",
        "code.pth": "code in a pickle is refused",
        "classifier.pth": "no ML-Decoder head and no Query2Label head",
        "head.pth": "has a head without a backbone",
    }.items():
        code, lines = _run(capsys, "--checkpoint", tmp_path / name, "--out", tmp_path / "model")
        assert code == 2
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
        assert reason in lines[0]
    assert not (tmp_path / "pwned").exists()
    out = tmp_path / "model"
    code, _ = _run(capsys, "--checkpoint", checkpoint, "--out", out, "--precision", "fp32")
    assert code == 0
