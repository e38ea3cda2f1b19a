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
from numpy.typing import NDArray
from typer.testing import CliRunner

from export.__main__ import main as export
from service.cli.commands import app
from tests.e2e.server_process import ROOT

SCRIPTS = ROOT.parent / "shared" / "goldens" / "wild"
PHOTOS = ROOT / "docs" / "photos"
TOLERANCE = 1e-3  # of a score
WD = "--channels bgr --pad white"

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
        found = {each["label"]: each["score"] for each in answer["labels"]}
        wanted = dict(zip(names, expected.tolist(), strict=True))
        assert found == pytest.approx(wanted, abs=TOLERANCE)
