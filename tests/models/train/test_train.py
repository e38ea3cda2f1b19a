"""Training of a tiny backbone on generated photos of coloured shapes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.checkpoints.checkpoint import Checkpoint, read_checkpoint
from models.checkpoints.description import CheckpointError
from models.data.labelled_folder import read_labelled_folder
from models.evaluate import predict
from models.metrics import average_precisions
from models.train import build
from models.train.__main__ import main
from tests.models.colours import COLOURS, read_losses, stop_in_second_epoch, write_colours

TINY = [
    *("--backbone", "test_efficientnet", "--no-pretrained", "--image-size", "32"),
    *("--decoder-width", "16", "--feedforward-width", "16", "--num-heads", "2"),
    *("--auto-augment", "rand-m5-inc1", "--batch-size", "16", "--workers", "0"),
    *("--lr", "0.01", "--backbone-lr", "0.01", "--crop-scale", "0.9", "--ema-decay", "0.8"),
    *("--epochs", "1", "--views", "1"),
]
Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("colours")
    return write_colours(folder, {"train": 96, "val": 32, "test": 32}, tuple(COLOURS), move=True)


@pytest.fixture(scope="module")
def tuned(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that trained the backbone too; read only."""
    folder = tmp_path_factory.mktemp("tuned")
    assert run(photos, folder, "--frozen-stages", "0") == 0
    return folder


def run(photos: Path, out: Path, *options: str) -> int:
    """Trains for an epoch, if the options give no other number."""
    return main(["--data", str(photos), "--out", str(out), *TINY, *options])


def init(run: Path) -> list[str]:
    return ["--init", str(run / "model.safetensors")]


def read(run: Path) -> Checkpoint:
    return read_checkpoint(run / "model.safetensors")


def read_state(run: Path, prefix: str = "", suffix: str = "") -> dict[str, Tensor]:
    state = read(run).network.state_dict()
    return {k: v for k, v in state.items() if k.startswith(prefix) and k.endswith(suffix)}


def copy_photos(photos: Path, folder: Path, **changes: Any) -> Path:
    """Links the photos, with another index."""
    folder.mkdir()
    (folder / "images").symlink_to(photos / "images")
    index = json.loads((photos / "labels.json").read_text())
    (folder / "labels.json").write_text(json.dumps(index | changes))
    return folder


def test_training_learns_the_colours_and_writes_a_checkpoint(photos: Path, tmp_path: Path) -> None:
    assert run(photos, tmp_path, "--frozen-stages", "0", "--epochs", "12") == 0
    history, checkpoint = read_losses(tmp_path), read(tmp_path)
    assert len(history) == 12
    assert history[-1] < history[0]
    assert checkpoint.label_names == tuple(COLOURS)
    logits, targets = predict(checkpoint, read_labelled_folder(photos), "test")
    assert logits.shape == (32, 3)
    assert average_precisions(logits, targets).mean() > 85  # chance: 50


def test_frozen_stages_do_not_change(photos: Path, tuned: Path, tmp_path: Path) -> None:
    assert run(photos, tmp_path, "--frozen-stages", "2", "--epochs", "3", *init(tuned)) == 0
    first, second = read_state(tuned), read_state(tmp_path)
    changed = {key for key in first if not torch.equal(first[key], second[key])}
    assert not [key for key in changed if "conv_stem" in key or "blocks.1." in key]
    assert any(key.startswith("backbone.body.blocks.3.") for key in changed)
    assert any(key.startswith("head.") for key in changed)


def test_half_precision_learns_and_keeps_its_state(photos: Path, tmp_path: Path) -> None:
    options = ["--frozen-stages", "0", "--mixed-precision", "bf16", "--epochs", "3"]
    with stop_in_second_epoch():
        run(photos, tmp_path, *options)
    assert run(photos, tmp_path, *options) == 0
    history = read_losses(tmp_path)
    assert history[-1] < history[0]
    assert {tensor.dtype for tensor in read_state(tmp_path).values()} <= {
        torch.float32, torch.int64
    }  # fmt: skip


def test_resumed_run_equals_an_unbroken_one(photos: Path, tmp_path: Path) -> None:
    cache, unbroken, broken = (tmp_path / name for name in ("cache", "unbroken", "broken"))
    options = ["--frozen-stages", "2", "--epochs", "3", "--views", "2", "--cache", str(cache)]
    assert run(photos, unbroken, *options) == 0
    with stop_in_second_epoch():
        run(photos, broken, *options)
    assert run(photos, broken, *options) == 0
    assert read_losses(broken) == read_losses(unbroken)
    assert read_losses(unbroken)[-1] < read_losses(unbroken)[0]
    torch.testing.assert_close(read_state(broken), read_state(unbroken), rtol=1e-5, atol=1e-6)
    assert len(list(cache.iterdir())) == 2


def test_mistakes_on_the_command_line_exit_with_2(
    photos: Path, tmp_path: Path, capsys: Output
) -> None:
    for bad in (
        ["--data", str(tmp_path)],
        ["--backbone", "resnet5000"],
        ["--init", str(tmp_path / "absent.safetensors")],
        ["--batch-size", "5000"],
        ["--auto-augment", "foo"],
        ["--auto-augment", "rand-x5"],
        ["--decoder-width", "15"],  # which two heads do not divide
        ["--backbone", "coat_tiny"],  # whose features are several maps
        ["--backbone", "tresnet_m", "--image-size", "230", "--train-size", "64"],
        ["--backbone", "tresnet_m", "--image-size", "64", "--train-size", "230"],
        ["--backbone", "test_resnet", "--frozen-stages", "1"],  # which is not cut
        ["--backbone", "test_resnet", "--frozen-stages", "98"],
        ["--lr", "1e30"],  # the loss is soon no number
        ["--head", "query2label"],  # which is served, not trained
        ["--out", str(photos / "labels.json")],
        ["--cache", str(photos / "labels.json")],
    ):
        assert run(photos, tmp_path / "run", *bad) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
    for flag in ("--workers=-1", "--workers=two", "--device=banana"):
        with pytest.raises(SystemExit):
            run(photos, tmp_path, flag)
        assert f"argument {flag.partition('=')[0]}: " in capsys.readouterr().err


def test_backbone_without_stages_is_frozen_whole(photos: Path, tmp_path: Path) -> None:
    data = copy_photos(photos, tmp_path / "data", name="colours/2026")
    assert run(data, tmp_path / "run", "--backbone", "test_resnet", "--num-groups", "2") == 0
    assert read(tmp_path / "run").notes["training_data"] == "colours/2026, 96 photos"


def test_finished_run_is_measured_again_and_not_resumed_with_other_options(
    photos: Path, tuned: Path, tmp_path: Path, capsys: Output
) -> None:
    out, options = tmp_path / "run", ["--epochs", "2"]
    results = []
    for _ in range(2):
        assert run(photos, out, *options) == 0
        log = (out / "metrics.csv").read_text()
        results.append((capsys.readouterr().out, read(out).notes, log))
    assert "nan" not in results[0][0]
    assert results[0] == results[1]
    recipe = (out / "recipe.json").read_text()
    renamed = copy_photos(photos, tmp_path / "renamed", label_names=["pink", "green", "blue"])
    index = renamed / "labels.json"
    index.write_text(index.read_text().replace('"red"', '"pink"'))
    for field, other in {
        "epochs 2, not 3": ["--epochs", "3"],
        "lr 0.01, not 0.02": ["--lr", "0.02"],
        "head 'ml_decoder', not 'gap'": ["--head", "gap"],
        "label_names ['red', 'green', 'blue'], not ['pink', ": ["--data", str(renamed)],
        "init '', not ": init(tuned),
    }.items():
        assert run(photos, out, *options, *other) == 2
        error = capsys.readouterr().err
        assert f"begun with {field}" in error
        assert error.count("\n") == 1
        assert (out / "recipe.json").read_text() == recipe
    (out / "state.pt").write_bytes(b"junk")
    assert run(photos, out, *options) == 2
    assert "state.pt is damaged" in capsys.readouterr().err


def test_missing_or_broken_photo_is_named_and_a_changed_one_encoded_again(
    photos: Path, tmp_path: Path, capsys: Output
) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    shutil.copytree(photos, data)
    photo = data / "images" / "007.png"  # for training
    content = photo.read_bytes()
    for damage in (photo.unlink, lambda: photo.write_bytes(content[:100])):
        damage()
        assert run(data, tmp_path / "run", "--workers", "1") == 2
        *_, error = capsys.readouterr().err.splitlines()
        assert error.startswith("error: ")
        assert "007.png is missing" in error
    for name, source, count in (("a", "008.png", 2), ("b", "009.png", 3)):
        shutil.copyfile(data / "images" / source, photo)
        assert run(data, tmp_path / name, "--cache", str(cache)) == 0
        assert len(list(cache.iterdir())) == count


def test_init_needs_no_pretrained_weights_and_keeps_batch_norm_statistics(
    photos: Path, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    def refuse(backbone: Backbone) -> None:
        raise CheckpointError(f"no pretrained weights could be loaded for {backbone.name}")

    monkeypatch.setattr(build, "load_pretrained", refuse)
    options = ["--frozen-stages", "0"]
    assert run(photos, tmp_path / "a", *options, "--pretrained") == 2
    means = read_state(tuned, suffix="running_mean")
    for name, pretrained in (("a", "--pretrained"), ("b", "--no-pretrained")):
        capsys.readouterr()
        assert run(photos, tmp_path / name, *options, pretrained, *init(tuned)) == 0
        assert "model.safetensors: took its backbone and its head" in capsys.readouterr().out
        kept = read_state(tmp_path / name, suffix="running_mean")
        torch.testing.assert_close(kept, means, rtol=0, atol=0)
