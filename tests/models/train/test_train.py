"""Training of a tiny backbone on generated photos of coloured shapes."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from models.backbones.backbone import Backbone
from models.checkpoints.checkpoint import read_checkpoint
from models.checkpoints.pretrained import PretrainedError
from models.data import DataError, LabelledFolder, read_labelled_folder
from models.data.records import WordVectors
from models.evaluate import predict
from models.metrics import average_precisions
from models.train.__main__ import main
from models.train.losses import mix
from models.train.queries import QueryAugmentation, ZeroShotLabels, read_zero_shot_labels
from models.train.recipe import Recipe, RecipeError
from models.train.run import Run, one_cycle

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
    assert predict(checkpoint, read_labelled_folder(photos), "test")[0].shape == (32, 3)


def test_training_learns_the_colours(photos: Path, tmp_path: Path) -> None:
    assert main(["--data", str(photos), "--out", str(tmp_path), *TINY,
                 "--frozen-stages", "0", "--epochs", "12"]) == 0  # fmt: skip
    checkpoint = read_checkpoint(tmp_path / "model.safetensors")
    logits, targets = predict(checkpoint, read_labelled_folder(photos), "test")
    assert average_precisions(logits, targets).mean() > 85  # chance: 50


def test_frozen_stages_do_not_change(photos: Path, tmp_path: Path) -> None:
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


def test_resumed_run_equals_an_unbroken_one(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--data", str(photos), *TINY, "--frozen-stages", "2", "--epochs", "3"]
    arguments += ["--cache", str(tmp_path / "cache"), "--views", "2"]
    assert main([*arguments, "--out", str(tmp_path / "unbroken")]) == 0

    real_epoch = Run._train_epoch

    def stop_in_the_second(run: Run) -> dict[str, float]:
        if run.epoch == 1:
            raise _Stopped
        return real_epoch(run)

    with monkeypatch.context() as patched:
        patched.setattr(Run, "_train_epoch", stop_in_the_second)
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


def test_mixup_gives_the_labels_of_both_photos() -> None:
    torch.manual_seed(0)
    inputs, targets = torch.rand(8, 3, 4, 4), torch.eye(8)
    mixed, union = mix(inputs, targets, alpha=1.0)
    assert (union >= targets).all()
    assert union.sum(dim=1).max() == 2
    assert mixed.min() >= inputs.min()
    assert mixed.max() <= inputs.max()
    assert mix(inputs, targets, alpha=0.0) == (inputs, targets)


def test_shipped_recipes_are_valid_and_differ_in_the_head_alone() -> None:
    folder = Path(__file__).parents[3] / "models" / "recipes"
    decoder = Recipe.read(folder / "lite0.toml", {})
    gap = Recipe.read(folder / "lite0_gap.toml", {})
    head_fields = {"head", "decoder_width", "feedforward_width"}
    assert decoder.model_dump(exclude=head_fields) == gap.model_dump(exclude=head_fields)
    assert (decoder.head, gap.head) == ("ml_decoder", "gap")


def test_recipe_names_its_mistake_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    for text, reason in {
        "epochs = 0": "epochs: ",
        "speed = 3": "speed: ",
        "epochs = ": "cannot read",
    }.items():
        path.write_text(text)
        with pytest.raises(RecipeError, match=reason):
            Recipe.read(path, {})
    path.write_text("epochs = 3")
    assert Recipe.read(path, {"lr": "0.5"}) == Recipe(epochs=3, lr=0.5)


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
        ["--auto-augment", "foo"],
        ["--auto-augment", "rand-x5"],
        ["--auto-augment", "foo", "--train-resize", "squash"],
        ["--single-label"],  # photos of these have several labels, or none
        ["--decoder-width", "15"],  # which two heads do not divide
        ["--gamma-neg", "0.5"],  # whose slope at 0 has no end
        ["--backbone", "coat_tiny"],  # whose features are several maps
        ["--backbone", "xcit_nano_12_p16_224", "--image-size", "230"],  # patches do not divide it
        ["--backbone", "tresnet_m", "--image-size", "230", "--train-size", "64"],
        ["--backbone", "tresnet_m", "--image-size", "64", "--train-size", "230"],
        ["--backbone", "test_resnet", "--frozen-stages", "2"],  # which is not cut
        ["--lr", "1e30"],  # the loss is soon no number
        ["--head", "query2label", "--decoder-width", "10"],  # whose positions come in fours
        ["--head", "query2label", "--train-size", "64"],  # whose positions are those of one grid
        ["--batch-size", "1", "--single-label", "--mixup", "0.2"],  # with what?
        ["--out", str(photos / "labels.json")],
        ["--cache", str(photos / "labels.json")],
    ):
        assert main([*good, *bad]) == 2
        assert capsys.readouterr().err.rpartition("\n")[0].rpartition("\n")[2].startswith("error: ")
    assert main(good) == 0


@pytest.mark.parametrize("workers", ["-1", "two"])
def test_workers_must_be_a_number(photos: Path, tmp_path: Path, workers: str) -> None:
    good = ["--data", str(photos), "--out", str(tmp_path), *TINY, "--epochs", "1"]
    with pytest.raises(SystemExit):
        main([*good, f"--workers={workers}"])
    assert main(good) == 0


def test_name_of_a_data_set_may_contain_slashes(photos: Path, tmp_path: Path) -> None:
    index = json.loads((photos / "labels.json").read_text())
    (tmp_path / "images").symlink_to(photos / "images")
    (tmp_path / "labels.json").write_text(json.dumps(index | {"name": "colours/2026"}))
    run = tmp_path / "run"
    assert main(["--data", str(tmp_path), "--out", str(run), *TINY, "--epochs", "1"]) == 0
    notes = read_checkpoint(run / "model.safetensors").notes
    assert notes["training_data"] == "colours/2026, 96 photos"


def test_single_label_data_gets_a_softmax_and_no_cutmix_of_tokens(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = json.loads((photos / "labels.json").read_text())
    for entry in index["images"].values():
        entry["labels"] = entry["labels"][:1] or ["red"]
    (tmp_path / "single").mkdir()
    (tmp_path / "single" / "images").symlink_to(photos / "images")
    (tmp_path / "single" / "labels.json").write_text(json.dumps(index))
    given = ["--data", str(tmp_path / "single"), "--out", str(tmp_path / "run"), *TINY]
    given += ["--epochs", "1", "--single-label"]
    assert main([*given, "--cutmix", "1"]) == 2
    assert "leaves only tokens to cut from" in capsys.readouterr().err
    assert main(given) == 0
    config = read_checkpoint(tmp_path / "run" / "model.safetensors").config
    assert config is not None
    assert config.activation == "softmax"


def test_training_starts_from_a_checkpoint_with_another_head(photos: Path, tmp_path: Path) -> None:
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


def test_backbone_without_stages_is_frozen_whole_or_not_at_all(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", str(photos), *TINY, "--epochs", "1", "--backbone", "test_resnet"]
    for stages, code in (("1", 2), ("98", 2), ("0", 0), ("99", 0)):
        given = ["--out", str(tmp_path / stages), "--frozen-stages", stages]
        assert main([*arguments, *given]) == code
        assert ("give --frozen-stages 99 (all of it) or 0 (none)" in capsys.readouterr().err) == (
            code == 2
        )


def test_finished_run_is_measured_again_and_not_changed(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", str(photos), "--out", str(tmp_path), *TINY, "--epochs", "2"]
    printed, notes, logs = [], [], []
    for _ in range(2):
        assert main(arguments) == 0
        printed.append(capsys.readouterr().out)
        notes.append(read_checkpoint(tmp_path / "model.safetensors").notes)
        logs.append((tmp_path / "metrics.csv").read_text())
    assert "nan" not in printed[0]
    assert (printed[0], notes[0], logs[0]) == (printed[1], notes[1], logs[1])


def test_run_is_not_resumed_with_other_options(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    good = ["--data", str(photos), "--out", str(run), *TINY, "--epochs", "1"]
    assert main(good) == 0
    recipe = (run / "recipe.json").read_text()
    renamed = tmp_path / "renamed"
    shutil.copytree(photos, renamed)
    index = (renamed / "labels.json").read_text()
    (renamed / "labels.json").write_text(index.replace('"red"', '"pink"'))
    start = str(run / "model.safetensors")
    for field, other in {
        "epochs 1, not 3": ["--epochs", "3"],
        "batch_size 16, not 8": ["--batch-size", "8"],
        "lr 0.01, not 0.02": ["--lr", "0.02"],
        "head 'ml_decoder', not 'gap'": ["--head", "gap"],
        "label_names ['red', 'green', 'blue'], not ['pink', ": ["--data", str(renamed)],
        "init '', not ": ["--init", start],
    }.items():
        capsys.readouterr()
        assert main([*good, *other]) == 2
        error = capsys.readouterr().err
        assert f"begun with {field}" in error
        assert error.count("\n") == 1
        assert (run / "recipe.json").read_text() == recipe
    (run / "state.pt").write_bytes(b"junk")
    assert main(good) == 2
    assert "state.pt is damaged" in capsys.readouterr().err
    (run / "state.pt").unlink()
    assert main(good) == 0


def test_missing_or_broken_photo_is_named_in_one_line(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(photos, data)
    good = ["--data", str(data), "--out", str(tmp_path / "run"), *TINY, "--epochs", "1"]
    photo = data / "images" / "007.png"
    content = photo.read_bytes()
    for damage in (photo.unlink, lambda: photo.write_bytes(content[:100])):
        damage()
        for workers in ("0", "1"):
            assert main([*good, "--workers", workers]) == 2
            *_, error = capsys.readouterr().err.splitlines()
            assert error.startswith("error: ")
            assert "007.png" in error
    photo.write_bytes(content)
    assert main(good) == 0


def test_changed_photo_is_encoded_again(photos: Path, tmp_path: Path) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    shutil.copytree(photos, data)
    arguments = ["--data", str(data), "--cache", str(cache), *TINY, "--epochs", "1", "--views", "1"]
    for run, count in (("a", 2), ("b", 2), ("c", 3)):
        assert main([*arguments, "--out", str(tmp_path / run)]) == 0
        assert len(list(cache.iterdir())) == count
        if run == "b":  # one of the training photos
            shutil.copyfile(data / "images" / "001.png", data / "images" / "002.png")


def test_init_needs_no_pretrained_weights_and_keeps_batch_norm_statistics(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from models.train import build

    def refuse(backbone: Backbone) -> None:
        raise PretrainedError(f"no pretrained weights could be loaded for {backbone.name}")

    monkeypatch.setattr(build, "load_pretrained", refuse)
    arguments = ["--data", str(photos), *TINY, "--epochs", "1", "--frozen-stages", "0"]
    assert main([*arguments, "--out", str(tmp_path / "a")]) == 0
    start = ["--init", str(tmp_path / "a" / "model.safetensors")]
    assert main([*arguments, "--out", str(tmp_path / "b"), "--pretrained"]) == 2
    assert main([*arguments, "--out", str(tmp_path / "b"), "--pretrained", *start]) == 0
    assert "model.safetensors: took its backbone and its head" in capsys.readouterr().out
    assert main([*arguments, "--out", str(tmp_path / "c"), *start]) == 0
    states = {
        run: read_checkpoint(tmp_path / run / "model.safetensors").network.state_dict()
        for run in "abc"
    }
    for key, tensor in states["a"].items():
        if key.endswith("running_mean"):
            torch.testing.assert_close(states["b"][key], tensor, rtol=0, atol=0)
            torch.testing.assert_close(states["c"][key], tensor, rtol=0, atol=0)


@pytest.mark.parametrize(("steps", "warmup"), [(5, 0.2), (1, 0.5), (10, 0.2), (4, 0.2)])
def test_learning_rate_reaches_its_peak_for_any_number_of_steps(steps: int, warmup: float) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = one_cycle(optimizer, steps, warmup)
    rates = []
    for _ in range(steps):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    if warmup * steps >= 2:
        assert max(rates) == pytest.approx(0.3)
    assert max(rates) == rates[max(0, round(warmup * steps) - 1)]


def make_labels(seen: tuple[str, ...], unseen: tuple[str, ...] = ()) -> ZeroShotLabels:
    """Returns the labels of a folder with a, b, c and d."""
    vectors = WordVectors(np.eye(4, dtype=np.float32), seen, unseen)
    folder = LabelledFolder("words", ("a", "b", "c", "d"), (), word_vectors=vectors)
    return read_zero_shot_labels(folder, QueryAugmentation(), torch.device("cpu"))


@pytest.mark.parametrize("seen", [("c",), ()])
def test_fewer_than_two_seen_labels_are_refused(seen: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="fewer than 2 labels for training"):
        make_labels(seen, ("a",))
    assert make_labels(("c", "d"), ("a",))


def test_label_that_is_neither_seen_nor_unseen_is_left_out() -> None:
    targets = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    found = make_labels(("b", "d"), ("a",))
    assert found.for_training(targets)[1].tolist() == [[2, 4]]
    assert found.for_validation(targets)[1].tolist() == [[1]]
    assert make_labels(("b", "d")).for_validation(targets)[1].tolist() == [[2, 4]]
