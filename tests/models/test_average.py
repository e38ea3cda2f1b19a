"""Averaging checkpoints: the mean of the weights, of one network only."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models import average
from models.average import main
from models.backbones.backbone import Backbone
from models.checkpoints.checkpoint import read_checkpoint, write_checkpoint
from models.config import GapConfig, InputConfig
from tests.export.tiny_network import make_network

Paths = tuple[Path, Path, Path]

LABELS = ("cat", "dog")


def write_network(
    path: Path, seed: int, labels: tuple[str, ...] = LABELS, **changes: object
) -> None:
    usual = {
        "input": InputConfig(height=32, width=32),
        "head": GapConfig(num_classes=len(labels), encoder_width=256),
    }
    write_checkpoint(path, make_network(seed, **{**usual, **changes}), labels, {"seed": str(seed)})


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Returns the files of two networks with different weights, and a free name."""
    a, b, out = (tmp_path / f"{name}.safetensors" for name in ("a", "b", "out"))
    write_network(a, 1)
    write_network(b, 2)
    return a, b, out


def run(out: Path, *arguments: str) -> int:
    return main(["--out", str(out), *arguments])


def read_state(path: Path) -> dict[str, Tensor]:
    return read_checkpoint(path).network.state_dict()


def test_average_has_the_weighted_mean_of_every_weight(paths: Paths) -> None:
    a, b, _ = paths
    out = a.parent / "runs" / "mean" / "out.safetensors"  # whose folder is made
    assert run(out, f"{a}=0.25", f"{b}=0.75") == 0
    first, second, averaged = read_state(a), read_state(b), read_checkpoint(out)
    for key, tensor in averaged.network.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, 0.25 * first[key] + 0.75 * second[key])
    assert averaged.label_names == LABELS
    assert averaged.notes["average"].startswith("0.25 ")


def test_share_of_the_untouched_backbone_leaves_the_head_alone(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    untouched: list[Backbone] = []

    def load_ones(backbone: Backbone) -> None:
        for tensor in backbone.state_dict().values():
            tensor.fill_(1)
        untouched.append(backbone)

    monkeypatch.setattr(average, "load_pretrained", load_ones)
    a, _, out = paths
    assert run(out, "--untouched", "0.25", f"{a}=1") == 0
    assert [backbone.name for backbone in untouched] == ["test_efficientnet"]
    first = read_state(a)
    for key, tensor in read_state(out).items():
        expected = first[key]
        if key.startswith("backbone.") and tensor.is_floating_point():
            expected = 0.75 * expected + 0.25
        torch.testing.assert_close(tensor, expected)


@pytest.mark.parametrize(
    "arguments",
    [
        *[(f"--untouched={share}", "a.safetensors=1") for share in ("1.5", "-0.1", "nan", "much")],
        *[(part,) for part in ("a.safetensors", "a.safetensors=half", "=1")],
        ("--out=out.pt", "a.safetensors=1"),
    ],
)
def test_invalid_option_is_refused(
    paths: Paths, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, out = paths
    monkeypatch.chdir(a.parent)
    with pytest.raises(SystemExit):
        run(out, *arguments)
    assert set(out.parent.iterdir()) == {a, b}


DIFFERENT, SUM = "different networks, inputs or labels", "must sum to 1"
GREY = InputConfig(height=32, width=32, mean=(0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("changes", "shares", "message"),
    [
        ({"labels": ("cat", "cow")}, (0.5, 0.5), DIFFERENT),
        ({"activation": "softmax"}, (0.5, 0.5), DIFFERENT),
        ({"input": GREY}, (0.5, 0.5), DIFFERENT),
        ({}, (0.5, 0.6), SUM),
        ({}, (float("nan"), 0.5), SUM),
    ],
)
def test_average_refuses_other_networks_and_shares_in_one_line(
    paths: Paths,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    shares: tuple[float, float],
    message: str,
) -> None:
    a, b, out = paths
    write_network(b, 2, **changes)
    assert run(out, f"{a}={shares[0]}", f"{b}={shares[1]}") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_average_refuses_networks_bound_to_other_image_sizes(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, out = paths
    write_network(b, 2, input=InputConfig(height=64, width=64))  # no weight depends on the size
    assert run(out, f"{a}=0.5", f"{b}=0.5") == 0
    head = GapConfig(num_classes=2, encoder_width=64)
    for path, size in ((a, 96), (b, 160)):
        photos = InputConfig(height=size, width=size)
        write_network(path, 1, backbone="test_vit", input=photos, head=head)
    assert run(out, f"{a}=0.5", f"{b}=0.5") == 2
    assert "bound to different image sizes" in capsys.readouterr().err


def test_out_must_be_a_file(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    a, _, out = paths
    out.mkdir()
    for target in (out, a / "out.safetensors"):
        assert run(target, f"{a}=1") == 2
        assert capsys.readouterr().err.count("\n") == 1
