"""A bundle's figures equal its checkpoint's, and mistakes are one line."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from export.build import ExportRequest, build_bundle
from models.checkpoints.checkpoint import write_checkpoint
from models.checkpoints.description import Hints
from models.evaluate import main
from models.network import Network
from service.bundle.reader import Bundle
from tests.export.graphs.test_heads import OPEN
from tests.export.tiny_network import LABELS, write_folder
from tests.support.tiny_bundle import copy_bundle, edit_manifest, make_calibration

Evaluate = Callable[..., dict[str, float]]


@pytest.fixture
def evaluate(capsys: pytest.CaptureFixture[str]) -> Evaluate:
    """Runs the command and reads its figures."""

    def run(kind: str, path: Path, folder: Path, *flags: str) -> dict[str, float]:
        capsys.readouterr()
        assert main([kind, str(path), "--data", str(folder), *flags]) == 0
        lines = capsys.readouterr().out.splitlines()
        return {line[:20].strip(): float(line[20:]) for line in lines}

    return run


@pytest.mark.parametrize("order", [LABELS, LABELS[::-1]])
def test_bundle_has_the_figures_of_its_checkpoint(
    checkpoint: Path,
    plain_bundle: Bundle,
    order: tuple[str, ...],
    tmp_path: Path,
    evaluate: Evaluate,
) -> None:
    folder = write_folder(tmp_path / "photos", order)
    figures = evaluate("--bundle", plain_bundle.path, folder)
    assert {"mAP", "CF1", "OF1", "top-3 CF1", "top-3 OF1", *LABELS} <= figures.keys()
    assert figures == pytest.approx(evaluate("--checkpoint", checkpoint, folder), abs=0.01)


def test_figures_of_a_calibrated_bundle_are_of_its_calibrated_scores(
    plain_bundle: Bundle, folder: Path, tmp_path: Path, evaluate: Evaluate
) -> None:
    path = copy_bundle(plain_bundle, tmp_path)
    raw = evaluate("--bundle", path, folder)

    def shift(manifest: dict[str, Any]) -> None:
        calibration = make_calibration(1.0, -50.0).model_dump(mode="json")
        manifest["card"]["trained_head"]["calibration"] = calibration

    edit_manifest(path, shift)
    figures = evaluate("--bundle", path, folder)
    assert {name: figures[name] for name in ("mAP", *LABELS)} == pytest.approx(
        {name: raw[name] for name in ("mAP", *LABELS)}
    )
    assert raw["OR"] > 0
    assert figures["OR"] == 0  # no score reaches 0.5 any more


@pytest.mark.parametrize(
    "flag", [["--image-size", "32"], ["--plain-pixels"], ["--no-pre-norm"], ["--pad", "white"]]
)
def test_flags_of_checkpoints_are_refused_beside_a_bundle(
    flag: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--bundle", "bundle", "--data", "photos", *flag])

    assert caught.value.code == 2
    assert f"{flag[0].replace('no-', '')} is for checkpoints" in capsys.readouterr().err


def test_hints_have_the_same_effect_on_evaluation_and_export(
    checkpoint: Path, folder: Path, tmp_path: Path, evaluate: Evaluate
) -> None:
    hints = Hints(plain_pixels=True, single_label=True, pad="black")
    bundle = build_bundle(ExportRequest(checkpoint, tmp_path / "model", hints=hints)).path
    measure = partial(evaluate, "--checkpoint", checkpoint, folder)
    expected = evaluate("--bundle", bundle, folder)
    padded = ("--plain-pixels", "--single-label", "--pad", "black")
    assert measure(*padded) == pytest.approx(expected, abs=0.01)
    assert measure("--plain-pixels") not in (measure(), measure("--plain-pixels", "--pad", "black"))


def test_other_labels_and_none_of_its_own_are_refused(
    network: Network, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "own.safetensors"
    write_checkpoint(other, network, ("blue", "green", "violet"), {})
    opened = Network(network.config.model_copy(update={"head": OPEN})).eval()
    opened.backbone = network.backbone  # which is traced already
    checkpoint = tmp_path / "open.safetensors"
    write_checkpoint(checkpoint, opened, (), {})
    bundle = build_bundle(ExportRequest(checkpoint, tmp_path / "model")).path
    for kind, path, reason in (
        ("--checkpoint", other, "'red' is in one only"),
        ("--checkpoint", checkpoint, "no labels of its own"),
        ("--bundle", bundle, "no trained labels"),
    ):
        assert main([kind, str(path), "--data", str(folder)]) == 2
        assert reason in capsys.readouterr().err


def test_mistakes_are_one_line(
    plain_bundle: Bundle, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, gone = ["--bundle", str(plain_bundle.path), "--data", str(folder)], str(folder / "gone")
    for bad in ("--bundle", gone), ("--data", gone), ("--split", "dev"), ("--precision", "int8"):
        assert main([*good, *bad]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
    assert main(good) == 0
