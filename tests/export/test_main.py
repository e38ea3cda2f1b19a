import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from export.__main__ import main
from service.bundle.reader import load_bundle
from tests.export.tiny_network import SPLITS, write_folder

Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exports; returns the exit code and the lines on stderr."""

    def export(*arguments: object) -> tuple[int, list[str]]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stopped:  # argparse
            code = int(stopped.code or 0)
        return code, capsys.readouterr().err.splitlines()

    return export


def test_categories_survive_calibration_and_set_thresholds(
    checkpoint: Path, folder: Path, tmp_path: Path, run: Run
) -> None:
    names = tmp_path / "selected_tags.csv"
    names.write_text("name,category,best_threshold\nblue,9,\ngreen,0,0.3\nred,9,0.2\n")
    given = ("--checkpoint", checkpoint, "--label-names", names, "--precision", "fp32")
    limits = ("--category-threshold", "general=0.35", "--category-threshold", "rating=0.75")
    code, lines = run(*given, *limits, "--out", tmp_path / "tagged", "--photos", folder)
    assert (code, "--category-threshold do not fit --photos" in lines[-1]) == (2, True)
    assert run(*given, *limits, "--out", tmp_path / "tagged")[0] == 0
    bundle = load_bundle(tmp_path / "tagged")
    assert [(label.category, label.threshold) for label in bundle.labels] == [
        *(("rating", 0.75), ("general", 0.35), ("rating", 0.75))
    ]
    again = ("--bundle", bundle.path, "--precision-target", "0.5")
    for arguments in (given, again):
        assert run(*arguments, "--photos", folder, "--out", tmp_path / "again")[0] == 0
        labels = load_bundle(tmp_path / "again").labels
        assert [label.category for label in labels] == ["rating", "general", "rating"]
        assert all(label.positives for label in labels)


def test_export_takes_another_image_size_and_says_what_it_costs(
    checkpoint: Path, folder: Path, tmp_path: Path, run: Run
) -> None:
    arguments = ("--checkpoint", checkpoint, "--precision", "fp32", "--photos", folder)
    code, lines = run(*arguments, "--image-size", "96", "--out", tmp_path / "large")
    assert code == 0
    assert lines[0].endswith("not 32 x 48: 6.00 times as many pixels, 9 tokens for the head")
    assert lines[1] == "read test_efficientnet with 3 labels, for photos of 96 x 96 pixels"
    card = load_bundle(tmp_path / "large").card
    assert (card.input.height, card.input.width) == (96, 96)


def test_export_goes_on_without_photos_that_cannot_be_used(
    checkpoint: Path, tmp_path: Path, run: Run
) -> None:
    photos, out = write_folder(tmp_path / "colours"), tmp_path / "tiny"
    (photos / "images" / "val0.png").write_bytes(b"junk")
    (photos / "images" / "test0.png").unlink()
    arguments = ("--checkpoint", checkpoint, "--precision", "fp32", "--photos", photos)
    code, lines = run(*arguments, "--out", out)
    assert code == 1
    assert lines[0] == "read test_efficientnet with 3 labels, for photos of 48 x 32 pixels"
    assert lines[1].startswith("photos: squashed, bilinear to 48 x 32, mean 0.5 0.4 0.3, ")
    assert f"left out: photo {photos / 'images' / 'test0.png'} cannot be read: No such" in lines[3]
    assert lines[-2:] == [f"wrote {out}", "2 photos were left out"]
    assert any("needs a background of 200 photos; there are 16: add --" in line for line in lines)
    bundle = load_bundle(out)
    assert (bundle.precisions(), bundle.card.background) == (("fp32",), None)
    assert bundle.card.metrics[0].images == SPLITS["test"] - 1
    assert any(label.threshold is not None for label in bundle.labels)

    for path in (photos / "images").glob("test*"):
        path.write_bytes(b"junk")
    code, lines = run(*arguments, "--out", tmp_path / "other")
    assert code == 2
    assert lines[-1].startswith("error: no photo of colours/test can be used: photo ")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--checkpoint", "gone.pth"], "no checkpoint file"),
        (["--photos", "gone"], "neither labels.json"),
        (["--precision", "fp32,int8"], "int8 needs photos to measure"),
        (["--label-thresholds", "gone"], "gone cannot be read, or is not UTF-8"),
        (["--out", "no good name!"], "model name"),
        (["--model-version", "one two"], "model version"),
        (["--image-size", "9999"], "tiny.safetensors: height: Input should be less than"),
        (["--open-photos", "folder"], "--open-photos needs --open-head"),
    ],
)
def test_export_writes_nothing_and_ends_with_one_line_after_a_mistake(
    checkpoint: Path, tmp_path: Path, run: Run, arguments: list[str], reason: str
) -> None:
    code, lines = run("--checkpoint", checkpoint, "--out", tmp_path / "tiny", *arguments)
    assert code == 2
    assert "error: " in lines[-1]
    assert reason in lines[-1]
    assert not (tmp_path / "tiny").exists()


FIT = ["--bundle", "x", "--out", "x", "--photos", "y"]
BACKGROUND = ["--bundle", "x", "--out", "x", "--background", "y"]
NEW = ["--checkpoint", "x", "--out", "y"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--bundle", "x"], "arguments are required: --out"),
        (["--out", "x"], "one of the arguments --checkpoint --bundle is required"),
        (["--bundle", "x", "--out", "x"], "needs --photos, --open-photos, --background or --words"),
        ([*NEW, "--triton", "x"], "--triton was removed: for Triton, place the graphs by hand as"),
        (["--triton-precision", "int8"], "docs/scale.md#triton shows"),
        ([*BACKGROUND, "--precision-target", "0.5"], "needs --photos or --open-photos"),
        ([*FIT, "--checkpoint", "z"], "--checkpoint: not allowed with argument --bundle"),
        ([*FIT, "--precision-target", "1.5"], "must be from 0 to 1; it is 1.5"),
        ([*FIT, "--open-split", "z"], "needs --open-photos"),
        ([*FIT, "--license", "z"], "--license needs --checkpoint"),
        ([*NEW, "--precision", "int4"], "'int4' is not one of fp32, fp16, int8"),
        ([*NEW, "--text-encoder", "z"], "--text-encoder needs --open-head"),
        ([*NEW, "--open-head", "x", "--open-split", "test"], "--open-split needs --open-photos"),
        ([*NEW, "--label-thresholds", "x", "--photos", "y"], "do not fit --photos"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: list[str], reason: str, run: Run) -> None:
    code, lines = run(*arguments)
    assert code == 2
    assert reason in lines[-1]


def test_export_refuses_a_text_file_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "notes.pth").write_text("hello\n")
    script = (
        "import sys; from export.__main__ import main; code = main(sys.argv[1:]); "
        "assert not {'torch', 'onnx'} & sys.modules.keys(); sys.exit(code)"
    )
    options = ("--out", tmp_path / "model", "--checkpoint", tmp_path / "notes.pth")
    done = subprocess.run(
        [sys.executable, "-c", script, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: notes.pth is of no known format; ")
