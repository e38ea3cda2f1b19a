"""Averaging checkpoints: the mean of the weights, of one network only."""

from pathlib import Path

import pytest
import torch

from models import average
from models.average import main
from models.backbones.backbone import Backbone
from models.checkpoints.checkpoint import read_checkpoint, write_checkpoint
from models.config import GapConfig, InputConfig, NetworkConfig
from models.network import Network

LABELS = ("cat", "dog")


def write_network(
    path: Path, seed: int, labels: tuple[str, ...] = LABELS, **changes: object
) -> Network:
    """Writes a tiny network with random weights, its configuration changed."""
    torch.manual_seed(seed)
    config = NetworkConfig(
        backbone="test_efficientnet",
        input=InputConfig(height=32, width=32),
        head=GapConfig(num_classes=len(labels), encoder_width=256),
    ).model_copy(update=changes)
    network = Network(config).eval()
    write_checkpoint(path, network, labels, {"seed": str(seed)})
    return network


def test_average_has_the_weighted_mean_of_every_weight(tmp_path: Path) -> None:
    a, b, out = (tmp_path / f"{name}.safetensors" for name in "abc")
    first, second = write_network(a, 1), write_network(b, 2)
    assert main(["--out", str(out), f"{a}=0.25", f"{b}=0.75"]) == 0
    averaged = read_checkpoint(out)
    for key, found in averaged.network.state_dict().items():
        if found.is_floating_point():
            expected = 0.25 * first.state_dict()[key] + 0.75 * second.state_dict()[key]
            torch.testing.assert_close(found, expected)
    assert averaged.label_names == LABELS
    assert averaged.notes["average"].startswith("0.25 ")


def test_share_of_1_keeps_the_weights(tmp_path: Path) -> None:
    a, b, out = (tmp_path / f"{name}.safetensors" for name in "abc")
    first = write_network(a, 1)
    write_network(b, 2)
    assert main(["--out", str(out), f"{b}=0", f"{a}=1"]) == 0
    found = read_checkpoint(out).network.state_dict()
    for key, expected in first.state_dict().items():
        torch.testing.assert_close(found[key], expected, rtol=0, atol=0)


def test_share_of_the_untouched_backbone_leaves_the_head_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    untouched: list[Backbone] = []

    def load_ones(backbone: Backbone) -> None:
        for tensor in backbone.state_dict().values():
            tensor.fill_(1)
        untouched.append(backbone)

    monkeypatch.setattr(average, "load_pretrained", load_ones)
    a, out = tmp_path / "a.safetensors", tmp_path / "out.safetensors"
    first = write_network(a, 1)
    assert average.main(["--out", str(out), "--untouched", "0.25", f"{a}=1"]) == 0
    assert [backbone.name for backbone in untouched] == ["test_efficientnet"]
    for key, found in read_checkpoint(out).network.state_dict().items():
        expected = first.state_dict()[key]
        if key.startswith("backbone.") and found.is_floating_point():
            expected = 0.75 * expected + 0.25
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("share", ["1.5", "-0.1", "nan", "much"])
def test_invalid_share_is_refused(tmp_path: Path, share: str) -> None:
    a, out = tmp_path / "a.safetensors", tmp_path / "out.safetensors"
    write_network(a, 1)
    with pytest.raises(SystemExit):
        main(["--out", str(out), f"--untouched={share}", f"{a}=1"])
    assert main(["--out", str(out), "--untouched", "0", f"{a}=1"]) == 0


@pytest.mark.parametrize(
    ("labels", "shares", "message"),
    [
        (("cat", "cow"), (0.5, 0.5), "different networks, inputs or labels"),
        (("cat", "dog", "cow"), (0.5, 0.5), "different networks, inputs or labels"),
        (LABELS, (0.5, 0.6), "do not sum to 1"),
        (LABELS, (float("nan"), 0.5), "do not sum to 1"),
        (LABELS, (float("inf"), -float("inf")), "do not sum to 1"),
    ],
)
def test_average_refuses_other_labels_and_shares_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    labels: tuple[str, ...],
    shares: tuple[float, float],
    message: str,
) -> None:
    a, b, out = (tmp_path / f"{name}.safetensors" for name in "abc")
    write_network(a, 1)
    write_network(b, 2, labels)
    assert main(["--out", str(out), f"{a}={shares[0]}", f"{b}={shares[1]}"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()
    assert main(["--out", str(out), f"{a}=0.5", f"{a}=0.5"]) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"activation": "softmax"},
        {"input": InputConfig(height=32, width=32, mean=(0.5, 0.5, 0.5))},
        {"input": InputConfig(height=32, width=32, resize_mode="crop", crop_pct=0.8)},
    ],
)
def test_average_refuses_other_inputs_and_activations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object]
) -> None:
    a, b, out = (tmp_path / f"{name}.safetensors" for name in "abc")
    write_network(a, 1)
    write_network(b, 2, **changes)
    assert main(["--out", str(out), f"{a}=0.5", f"{b}=0.5"]) == 2
    assert "different networks, inputs or labels" in capsys.readouterr().err
    write_network(b, 2, input=InputConfig(height=64, width=64))  # which no weight is bound to
    assert main(["--out", str(out), f"{a}=0.5", f"{b}=0.5"]) == 0


def test_average_refuses_networks_bound_to_other_image_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, out = (tmp_path / f"{name}.safetensors" for name in "abc")
    for path, size in ((a, 96), (b, 160)):
        config = NetworkConfig(
            backbone="test_vit",
            input=InputConfig(height=size, width=size),
            head=GapConfig(num_classes=2, encoder_width=64),
        )
        write_checkpoint(path, Network(config), LABELS, {})
    assert main(["--out", str(out), f"{a}=0.5", f"{b}=0.5"]) == 2
    assert "bound to different image sizes" in capsys.readouterr().err
    assert main(["--out", str(out), f"{a}=0.5", f"{a}=0.5"]) == 0


def test_out_must_end_in_safetensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, out = tmp_path / "a.safetensors", tmp_path / "out.safetensors"
    write_network(a, 1)
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path / "out.pt"), f"{a}=1"])
    assert list(tmp_path.iterdir()) == [a]
    out.mkdir()
    capsys.readouterr()
    assert main(["--out", str(out), f"{a}=1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    out.rmdir()
    assert main(["--out", str(out), f"{a}=1"]) == 0


@pytest.mark.parametrize("part", ["model.safetensors", "model.safetensors=half", "=1"])
def test_part_without_a_share_is_refused(tmp_path: Path, part: str) -> None:
    out, good = tmp_path / "out.safetensors", tmp_path / "good.safetensors"
    with pytest.raises(SystemExit):
        main(["--out", str(out), part])
    write_network(good, 1)
    assert main(["--out", str(out), f"{good}=1"]) == 0


def test_average_makes_the_folder_of_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, out = tmp_path / "a.safetensors", tmp_path / "runs" / "mean" / "out.safetensors"
    write_network(a, 1)
    assert main(["--out", str(a / "out.safetensors"), f"{a}=1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["--out", str(out), f"{a}=1"]) == 0
    assert read_checkpoint(out).label_names == LABELS
