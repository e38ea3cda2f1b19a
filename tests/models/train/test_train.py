"""Training of a tiny backbone on generated photos of coloured shapes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

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
from models.train.run import group_parameters, one_cycle
from tests.models.colours import COLOURS, read_losses, stop_in_second_epoch, write_colours

TINY = [
    *("--backbone", "test_efficientnet", "--no-pretrained", "--image-size", "32"),
    *("--decoder-width", "16", "--feedforward-width", "16", "--num-heads", "2"),
    *("--auto-augment", "rand-m5-inc1", "--batch-size", "16", "--workers", "0"),
    *("--lr", "0.01", "--backbone-lr", "0.01", "--crop-scale", "0.9", "--ema-decay", "0.8"),
    *("--epochs", "1"),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("colours")
    return write_colours(folder, {"train": 96, "val": 32, "test": 32}, tuple(COLOURS), move=True)


def run(photos: Path, out: Path, *options: str) -> int:
    """Trains for an epoch, if the options give no other number."""
    return main(["--data", str(photos), "--out", str(out), *TINY, *options])


def read_state(run: Path) -> dict[str, Tensor]:
    return read_checkpoint(run / "model.safetensors").network.state_dict()


@pytest.mark.parametrize(
    ("head", "frozen_stages", "epochs"),
    [("ml_decoder", 0, 4), ("gap", 0, 4), ("ml_decoder", 2, 4), ("ml_decoder", 99, 3)],
)
def test_training_lowers_the_loss_and_writes_a_checkpoint(
    photos: Path, tmp_path: Path, head: str, frozen_stages: int, epochs: int
) -> None:
    options = ["--head", head, "--frozen-stages", str(frozen_stages), "--epochs", str(epochs)]
    assert run(photos, tmp_path, *options, "--views", "2") == 0
    history = read_losses(tmp_path)
    assert len(history) == epochs
    assert history[-1] < history[0]
    checkpoint = read_checkpoint(tmp_path / "model.safetensors")
    assert checkpoint.label_names == tuple(COLOURS)
    assert predict(checkpoint, read_labelled_folder(photos), "test")[0].shape == (32, 3)


def test_training_learns_the_colours(photos: Path, tmp_path: Path) -> None:
    assert run(photos, tmp_path, "--frozen-stages", "0", "--epochs", "12") == 0
    checkpoint = read_checkpoint(tmp_path / "model.safetensors")
    logits, targets = predict(checkpoint, read_labelled_folder(photos), "test")
    assert average_precisions(logits, targets).mean() > 85  # chance: 50


def test_frozen_stages_do_not_change(photos: Path, tmp_path: Path) -> None:
    a, b, options = tmp_path / "a", tmp_path / "b", ["--frozen-stages", "2", "--views", "1"]
    assert run(photos, a, *options) == 0
    init = ["--init", str(a / "model.safetensors")]
    assert run(photos, b, *options, "--epochs", "3", *init) == 0
    first, second = read_state(a), read_state(b)
    changed = {key for key in first if not torch.equal(first[key], second[key])}
    frozen = ("backbone.body.conv_stem", "backbone.body.blocks.1.")
    assert not any(key.startswith(frozen) for key in changed)
    assert any(key.startswith("backbone.body.blocks.3.") for key in changed)
    assert any(key.startswith("head.") for key in changed)


def test_parameters_frozen_by_name_do_not_change(photos: Path, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    options = ["--frozen-stages", "0", "--frozen-names", r"^conv_stem|bn\d"]
    assert run(photos, a, *options) == 0
    assert run(photos, b, *options, "--init", str(a / "model.safetensors")) == 0
    first, second = read_state(a), read_state(b)
    changed = {key for key in first if not torch.equal(first[key], second[key])}
    assert not any("conv_stem" in key or "bn" in key for key in changed)
    assert any(key.startswith("backbone.body.blocks.3.") for key in changed)
    assert run(photos, tmp_path / "c", "--frozen-names", "nothing") == 2
    assert run(photos, tmp_path / "d", "--frozen-names", "(") == 2


def test_vectors_decay_only_if_all_parameters_do() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2, 2))]
    rates = [(parameter, 0.1) for parameter in parameters]
    assert [g["weight_decay"] for g in group_parameters(rates, 0.5)] == [0.0, 0.5]
    assert [g["weight_decay"] for g in group_parameters(rates, 0.5, decay_all=True)] == [0.5]


def test_resumed_run_equals_an_unbroken_one(photos: Path, tmp_path: Path) -> None:
    options = ["--frozen-stages", "2", "--epochs", "3", "--views", "2"]
    options += ["--cache", str(tmp_path / "cache")]
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert run(photos, unbroken, *options) == 0
    with stop_in_second_epoch():
        run(photos, broken, *options)
    assert run(photos, broken, *options) == 0
    assert read_losses(broken) == read_losses(unbroken)
    torch.testing.assert_close(read_state(broken), read_state(unbroken), rtol=1e-5, atol=1e-6)


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
        "epochs = ": "cannot be read",
    }.items():
        path.write_text(text)
        with pytest.raises(RecipeError, match=reason):
            Recipe.read(path, {})
    path.write_text("epochs = 3")
    assert Recipe.read(path, {"lr": "0.5"}) == Recipe(epochs=3, lr=0.5)


def test_mistakes_on_the_command_line_exit_with_2(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
        assert run(photos, tmp_path / "run", *bad) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
    assert run(photos, tmp_path / "run") == 0


@pytest.mark.parametrize("workers", ["-1", "two"])
def test_workers_must_be_a_number(photos: Path, tmp_path: Path, workers: str) -> None:
    with pytest.raises(SystemExit):
        run(photos, tmp_path, f"--workers={workers}")
    assert run(photos, tmp_path) == 0


def test_name_of_a_data_set_may_contain_slashes(photos: Path, tmp_path: Path) -> None:
    index = json.loads((photos / "labels.json").read_text())
    (tmp_path / "images").symlink_to(photos / "images")
    (tmp_path / "labels.json").write_text(json.dumps(index | {"name": "colours/2026"}))
    assert run(tmp_path, tmp_path / "run") == 0
    notes = read_checkpoint(tmp_path / "run" / "model.safetensors").notes
    assert notes["training_data"] == "colours/2026, 96 photos"


def test_single_label_data_gets_a_softmax_and_no_cutmix_of_tokens(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = json.loads((photos / "labels.json").read_text())
    for entry in index["images"].values():
        entry["labels"] = entry["labels"][:1] or ["red"]
    (tmp_path / "images").symlink_to(photos / "images")
    (tmp_path / "labels.json").write_text(json.dumps(index))
    assert run(tmp_path, tmp_path / "run", "--single-label", "--cutmix", "1") == 2
    assert "leaves only tokens to cut from" in capsys.readouterr().err
    assert run(tmp_path, tmp_path / "run", "--single-label") == 0
    config = read_checkpoint(tmp_path / "run" / "model.safetensors").config
    assert config is not None
    assert config.activation == "softmax"


def test_training_starts_from_a_checkpoint_with_another_head(photos: Path, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    assert run(photos, a, "--frozen-stages", "0") == 0
    init = ["--init", str(a / "model.safetensors")]
    frozen = ["--frozen-stages", "99", "--views", "1"]
    assert run(photos, b, "--head", "gap", *frozen, *init) == 0
    first, second = (
        {key: tensor for key, tensor in read_state(out).items() if key.startswith("backbone.")}
        for out in (a, b)
    )
    torch.testing.assert_close(second, first, rtol=0, atol=0)
    assert run(photos, tmp_path / "c", "--backbone", "test_resnet", *init) == 2


@pytest.mark.parametrize(("stages", "code"), [("1", 2), ("98", 2), ("0", 0), ("99", 0)])
def test_backbone_without_stages_is_frozen_whole_or_not_at_all(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], stages: str, code: int
) -> None:
    options = ["--backbone", "test_resnet", "--frozen-stages", stages]
    assert run(photos, tmp_path, *options) == code
    error = capsys.readouterr().err
    assert ("give --frozen-stages 99 (all of it) or 0 (none)" in error) == (code == 2)


def test_finished_run_is_measured_again_and_not_changed(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = []
    for _ in range(2):
        assert run(photos, tmp_path, "--epochs", "2") == 0
        notes = read_checkpoint(tmp_path / "model.safetensors").notes
        results.append((capsys.readouterr().out, notes, (tmp_path / "metrics.csv").read_text()))
    assert "nan" not in results[0][0]
    assert results[0] == results[1]


def test_run_is_not_resumed_with_other_options(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, renamed = tmp_path / "run", tmp_path / "renamed"
    assert run(photos, out) == 0
    recipe = (out / "recipe.json").read_text()
    shutil.copytree(photos, renamed)
    index = (renamed / "labels.json").read_text()
    (renamed / "labels.json").write_text(index.replace('"red"', '"pink"'))
    for field, other in {
        "epochs 1, not 3": ["--epochs", "3"],
        "batch_size 16, not 8": ["--batch-size", "8"],
        "lr 0.01, not 0.02": ["--lr", "0.02"],
        "head 'ml_decoder', not 'gap'": ["--head", "gap"],
        "label_names ['red', 'green', 'blue'], not ['pink', ": ["--data", str(renamed)],
        "init '', not ": ["--init", str(out / "model.safetensors")],
    }.items():
        capsys.readouterr()
        assert run(photos, out, *other) == 2
        error = capsys.readouterr().err
        assert f"begun with {field}" in error
        assert error.count("\n") == 1
        assert (out / "recipe.json").read_text() == recipe
    (out / "state.pt").write_bytes(b"junk")
    assert run(photos, out) == 2
    assert "state.pt is damaged" in capsys.readouterr().err
    (out / "state.pt").unlink()
    assert run(photos, out) == 0


def test_missing_or_broken_photo_is_named_in_one_line(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(photos, data)
    photo = data / "images" / "007.png"
    content = photo.read_bytes()
    for damage in (photo.unlink, lambda: photo.write_bytes(content[:100])):
        damage()
        for workers in ("0", "1"):
            assert run(data, tmp_path / "run", "--workers", workers) == 2
            *_, error = capsys.readouterr().err.splitlines()
            assert error.startswith("error: ")
            assert "007.png" in error
    photo.write_bytes(content)
    assert run(data, tmp_path / "run") == 0


def test_changed_photo_is_encoded_again(photos: Path, tmp_path: Path) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    shutil.copytree(photos, data)
    for name, count in (("a", 2), ("b", 2), ("c", 3)):
        assert run(data, tmp_path / name, "--cache", str(cache), "--views", "1") == 0
        assert len(list(cache.iterdir())) == count
        if name == "b":  # one of the training photos
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
    a, b, c = (tmp_path / name for name in "abc")
    tuned, start = ["--frozen-stages", "0"], ["--init", str(a / "model.safetensors")]
    assert run(photos, a, *tuned) == 0
    assert run(photos, b, *tuned, "--pretrained") == 2
    assert run(photos, b, *tuned, "--pretrained", *start) == 0
    assert "model.safetensors: took its backbone and its head" in capsys.readouterr().out
    assert run(photos, c, *tuned, *start) == 0
    means, *others = (
        {key: tensor for key, tensor in read_state(out).items() if key.endswith("running_mean")}
        for out in (a, b, c)
    )
    for found in others:
        torch.testing.assert_close(found, means, rtol=0, atol=0)


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
