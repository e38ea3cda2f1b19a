"""Published taggers, rebuilt small with random weights: export and prediction equal their code.

The rebuilt files and their authors' scores come from scripts next to the project; a checkout
without them skips these tests. Each layout also has a small test in `tests/models/checkpoints`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

from export.__main__ import main as export
from models import load_checkpoint
from models.checkpoints.description import CheckpointError
from service.cli.commands import app
from tests.e2e.server_process import ROOT

SCRIPTS = ROOT.parent / "shared" / "goldens" / "wild"
PHOTOS = ROOT / "docs" / "photos"
TOLERANCE = 1e-3  # of a score
WD = "--channels bgr --pad white"
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="the rebuilt taggers are not here")


def rebuild(folder: Path, script: str, *arguments: str) -> None:
    """Writes a case's files and its reference scores below a folder."""
    subprocess.run(
        [sys.executable, str(SCRIPTS / script), *arguments],
        env={**os.environ, "WILD_OUT": str(folder), "WILD_PHOTOS": str(PHOTOS)},
        check=True,
        capture_output=True,
    )


def read_reference(case: Path) -> tuple[list[str], NDArray[np.float32]]:
    """Returns the names of the photos and their scores [2, N]."""
    with np.load(case / "reference.npz") as arrays:
        return arrays["photos"].tolist(), arrays["scores"]


@pytest.mark.parametrize(
    ("script", "checkpoint", "options"),
    [
        pytest.param("wd_v3.py vit", "wd_vit_v3", WD, marks=pytest.mark.slow),
        pytest.param("wd_v3.py swinv2", "wd_swinv2_v3", WD, marks=pytest.mark.slow),
        ("animetimm.py resnet", "animetimm_resnet", ""),
        pytest.param(
            "mldanbooru_tresnet_d.py",
            "mldanbooru_tresnet_d/xformers.ckpt",
            "--image-size 448 --plain-pixels",
            marks=pytest.mark.slow,
        ),
        (
            "dead_self_attn.py",
            "dead_self_attn/best.pth",
            "--backbone resnet18 --label-names names.txt",
        ),
    ],
)
def test_tagger_answers_as_its_authors_code(
    script: str, checkpoint: str, options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rebuild(tmp_path, *script.split())
    case, bundle = tmp_path / checkpoint.split("/")[0], tmp_path / "tagger"
    given = options.replace("names.txt", str(case / "names.txt")).split()
    flags = ["--checkpoint", str(tmp_path / checkpoint), "--out", str(bundle)]
    assert export([*flags, "--precision", "fp32", *given]) == 0, capsys.readouterr().err
    capsys.readouterr()

    names = (case / "names.txt").read_text().split()
    photos, scores = read_reference(case)
    files = [str(tmp_path / "photos" / f"{name}.png") for name in photos]
    asked = ["--bundle", str(bundle), "--threshold", "0", "--json"]
    done = CliRunner().invoke(app, ["predict", *files, *asked])
    assert done.exit_code == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for answer, expected in zip(answers, scores, strict=True):
        answered = {each["label"]: each["score"] for each in answer["labels"]}
        wanted = dict(zip(names, expected.tolist(), strict=True))
        assert answered == pytest.approx(wanted, abs=TOLERANCE)


# Files that are refused, and what the message says that they are.
REFUSED = {
    "whole.pth": "Net",
    "whole_in_dict.pth": "Net",
    "script.pt": "TorchScript",
    "int8.pth": "quantised",
    "bnb.safetensors": "quantised",
    "params.npz": "zip archive",
    "two_nets.ckpt": "several networks",
}
# Weights in 16 bits round: largest deviations of a score.
ROUNDED = {"fp16.safetensors": 0.01, "mixed.pth": 0.01, "bf16.safetensors": 0.1}


@pytest.mark.filterwarnings("ignore:(TypedStorage|torch.quantize_per_tensor)")  # for int8
@pytest.mark.parametrize("case", [pytest.param("containers", marks=pytest.mark.slow), "fine_tunes"])
def test_containers_and_fine_tunes_have_their_networks_logits(case: str, tmp_path: Path) -> None:
    rebuild(tmp_path, f"{case}.py")
    folder = tmp_path / case
    photos, scores = read_reference(folder)
    images = torch.stack([prepare(tmp_path / "photos" / f"{name}.png") for name in photos])
    files = [path for path in folder.iterdir() if path.suffix not in (".txt", ".npz")]
    files += folder.glob("*/model.safetensors")
    files += folder.glob("params.npz")
    faults = {}
    for path in files:
        if path.is_dir() and not (path / "config.json").is_file():
            continue
        try:
            network = load_checkpoint(path, backbone="resnet18")
        except CheckpointError as error:
            if REFUSED.get(path.name, "\n") not in str(error):
                faults[path.name] = str(error)
            continue
        with torch.inference_mode():
            predicted = network(images).sigmoid().numpy()
        deviation = np.abs(predicted - scores).max()
        if path.name in REFUSED or not deviation <= ROUNDED.get(path.name, TOLERANCE):
            faults[path.name] = f"off by {deviation:.1e}"
    assert faults == {}


def prepare(path: Path) -> torch.Tensor:
    """Returns a photo as the cases prepare it: float32 [3, 224, 224], normalised."""
    pixels = Image.open(path).convert("RGB").resize((224, 224), Image.Resampling.BICUBIC)
    mean, std = (np.array(values, np.float32) for values in IMAGENET)
    array = (np.asarray(pixels, np.float32) / 255 - mean) / std
    return torch.from_numpy(array.transpose(2, 0, 1))
