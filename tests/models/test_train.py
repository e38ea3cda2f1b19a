"""Training for real, on generated photos of coloured shapes, with a tiny backbone."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from models.checkpoints import read_checkpoint
from models.data import read_labelled_folder
from models.evaluate import evaluate
from models.train.__main__ import main
from models.train.mixing import mix
from models.train.recipe import Recipe, RecipeError, read_recipe

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 230)}
TINY = [
    *("--backbone", "test_efficientnet", "--no-pretrained", "--image-size", "32"),
    *("--decoder-width", "16", "--feedforward-width", "16", "--num-heads", "2"),
    *("--auto-augment", "rand-m5-inc1", "--batch-size", "16", "--workers", "0"),
    *("--lr", "0.01", "--backbone-lr", "0.01", "--crop-scale", "0.9", "--ema-decay", "0.8"),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 photos, each with squares of up to three colours on grey; labels are the colours."""
    folder = tmp_path_factory.mktemp("colours")
    (folder / "images").mkdir()
    rng = np.random.default_rng(0)
    images = {}
    for i in range(160):
        present = [name for name in COLOURS if rng.random() < 0.5]
        picture = rng.integers(90, 130, (40, 40, 3)).astype(np.uint8)
        for column, name in enumerate(COLOURS):
            if name in present:
                row = int(rng.integers(0, 26))
                picture[row : row + 14, 13 * column : 13 * column + 13] = COLOURS[name]
        Image.fromarray(picture).save(folder / "images" / f"{i:03d}.png")
        split = "train" if i < 96 else "val" if i < 128 else "test"
        images[f"{i:03d}.png"] = {"split": split, "labels": present}
    index = {"name": "colours", "label_names": list(COLOURS), "images": images}
    (folder / "labels.json").write_text(json.dumps(index))
    return folder


def losses(run: Path) -> list[float]:
    with (run / "metrics.csv").open() as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("head", "frozen_stages", "epochs"),
    [("ml_decoder", 0, 4), ("gap", 0, 4), ("ml_decoder", 2, 4), ("ml_decoder", 99, 3)],
)
def test_training_lowers_the_loss_and_writes_a_checkpoint(
    photos: Path, tmp_path: Path, head: str, frozen_stages: int, epochs: int
) -> None:
    arguments = ["--data", str(photos), "--out", str(tmp_path), *TINY, "--head", head]
    arguments += ["--frozen-stages", str(frozen_stages), "--epochs", str(epochs), "--views", "2"]
    assert main(arguments) == 0
    history = losses(tmp_path)
    assert len(history) == epochs
    assert history[-1] < history[0]
    checkpoint = read_checkpoint(tmp_path / "model.safetensors")
    assert checkpoint.label_names == tuple(COLOURS)
    assert evaluate(checkpoint, read_labelled_folder(photos), "test").shape == (3,)


def test_training_learns_the_colours(photos: Path, tmp_path: Path) -> None:
    assert main(["--data", str(photos), "--out", str(tmp_path), *TINY,
                 "--frozen-stages", "0", "--epochs", "12"]) == 0  # fmt: skip
    checkpoint = read_checkpoint(tmp_path / "model.safetensors")
    assert evaluate(checkpoint, read_labelled_folder(photos), "test").mean() > 85  # chance: 50


def test_frozen_stages_stay_as_they_were(photos: Path, tmp_path: Path) -> None:
    arguments = ["--data", str(photos), *TINY, "--frozen-stages", "2", "--views", "1"]
    assert main([*arguments, "--out", str(tmp_path / "a"), "--epochs", "1"]) == 0
    assert main([*arguments, "--out", str(tmp_path / "b"), "--epochs", "3",
                 "--init", str(tmp_path / "a" / "model.safetensors")]) == 0  # fmt: skip
    first, second = (
        read_checkpoint(tmp_path / run / "model.safetensors").network.state_dict() for run in "ab"
    )
    changed = {key for key in first if not torch.equal(first[key], second[key])}
    assert not any(key.startswith(("backbone.body.conv_stem", "backbone.body.blocks.1."))
                   for key in changed)  # fmt: skip
    assert any(key.startswith("backbone.body.blocks.3.") for key in changed)
    assert any(key.startswith("head.") for key in changed)


class _Stopped(Exception):
    pass


def test_a_resumed_run_equals_an_unbroken_one(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--data", str(photos), *TINY, "--frozen-stages", "2", "--epochs", "3"]
    arguments += ["--cache", str(tmp_path / "cache"), "--views", "2"]
    assert main([*arguments, "--out", str(tmp_path / "unbroken")]) == 0

    from models.train import loop

    real_epoch = loop.Run._train_epoch

    def stop_in_the_second(run: loop.Run) -> float:
        if run.epoch == 1:
            raise _Stopped
        return real_epoch(run)

    with monkeypatch.context() as patched:
        patched.setattr(loop.Run, "_train_epoch", stop_in_the_second)
        with pytest.raises(_Stopped):
            main([*arguments, "--out", str(tmp_path / "broken")])
    assert main([*arguments, "--out", str(tmp_path / "broken")]) == 0

    assert losses(tmp_path / "broken") == losses(tmp_path / "unbroken")
    first, second = (
        read_checkpoint(tmp_path / run / "model.safetensors").network.state_dict()
        for run in ("unbroken", "broken")
    )
    for key, tensor in first.items():
        torch.testing.assert_close(second[key], tensor, rtol=1e-5, atol=1e-6)


def test_mixup_keeps_the_labels_of_both_photos() -> None:
    torch.manual_seed(0)
    inputs, targets = torch.rand(8, 3, 4, 4), torch.eye(8)
    mixed, union = mix(inputs, targets, alpha=1.0)
    assert (union >= targets).all()
    assert union.sum(dim=1).max() == 2
    assert mixed.min() >= inputs.min()
    assert mixed.max() <= inputs.max()
    assert mix(inputs, targets, alpha=0.0) == (inputs, targets)


def test_shipped_recipes_are_valid_and_differ_in_the_head_alone() -> None:
    folder = Path(__file__).parents[2] / "models" / "recipes"
    decoder = read_recipe(folder / "lite0.toml", {})
    gap = read_recipe(folder / "lite0_gap.toml", {})
    head_fields = {"head", "decoder_width", "feedforward_width"}
    assert decoder.model_dump(exclude=head_fields) == gap.model_dump(exclude=head_fields)
    assert (decoder.head, gap.head) == ("ml_decoder", "gap")


def test_a_mistake_in_a_recipe_is_named_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    for text, reason in {
        "epochs = 0": "epochs: ",
        "speed = 3": "speed: ",
        "epochs = ": "cannot read",
    }.items():
        path.write_text(text)
        with pytest.raises(RecipeError, match=reason):
            read_recipe(path, {})
    path.write_text("epochs = 3")
    assert read_recipe(path, {"lr": "0.5"}) == Recipe(epochs=3, lr=0.5)


def test_mistakes_on_the_command_line_exit_with_2(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = ["--data", str(photos), "--out", str(tmp_path / "run"), *TINY, "--epochs", "1"]
    for bad in (
        ["--data", str(tmp_path)],
        ["--epochs", "0"],
        ["--backbone", "resnet5000"],
        ["--init", str(tmp_path / "absent.safetensors")],
        ["--batch-size", "5000"],
    ):
        assert main([*good, *bad]) == 2
        assert capsys.readouterr().err.rpartition("\n")[0].rpartition("\n")[2].startswith("error: ")
    assert main(good) == 0


def test_training_may_start_from_a_checkpoint_with_another_head(
    photos: Path, tmp_path: Path
) -> None:
    arguments = ["--data", str(photos), *TINY, "--epochs", "1"]
    assert main([*arguments, "--out", str(tmp_path / "a"), "--frozen-stages", "0"]) == 0
    start = tmp_path / "a" / "model.safetensors"
    assert main([*arguments, "--out", str(tmp_path / "b"), "--head", "gap", "--frozen-stages", "99",
                 "--views", "1", "--init", str(start)]) == 0  # fmt: skip
    first, second = (
        read_checkpoint(tmp_path / run / "model.safetensors").network.state_dict() for run in "ab"
    )
    for key, tensor in first.items():
        if key.startswith("backbone."):
            torch.testing.assert_close(second[key], tensor, rtol=0, atol=0)
    assert main([*arguments, "--out", str(tmp_path / "c"), "--backbone", "test_resnet",
                 "--init", str(start)]) == 2  # fmt: skip
