"""Training of an open head on generated photos, with a tiny encoder and tiny texts."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from models.backbones.backbone import Backbone, input_config
from models.checkpoints.description import CheckpointError
from models.checkpoints.open_head import OpenHeadCheckpoint, read_open_head, write_open_head
from models.data import DataError, read_labelled_folder
from models.evaluate_open import evaluate_open
from models.text import read_text_encoder
from models.train.command import Place
from models.train.recipe import OpenRecipe, RecipeError
from models.train.run import Run, make_accelerator
from models.train_open.__main__ import main, train
from models.train_open.names import Vocabulary, choose_captions, choose_names, read_hold_out
from models.train_open.task import match_labels
from models.train_open.teacher import Sources, Teacher, TrainedHead, share_stages
from tests.models.tiny_text import write_text_encoder


class PooledHead(nn.Module):
    """A head as small as can be: a linear layer over the mean token."""

    def __init__(self, encoder_width: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(encoder_width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.linear(tokens.mean(dim=1))
        return logits


COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 230)}
OPEN_RECIPES = Path(__file__).parents[3] / "models" / "recipes" / "open"
RECIPE = OpenRecipe(
    template="a photo of {}",
    decoder_width=16,
    feedforward_width=16,
    num_heads=2,
    dropout=0.0,
    epochs=3,
    batch_size=16,
    lr=0.01,
    teacher_names=4,
    random_queries=2,
    ema_decay=0.8,
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 photos with squares of up to three colours; blue is only known from some captions."""
    folder = tmp_path_factory.mktemp("colours")
    (folder / "images").mkdir()
    stream, images = np.random.default_rng(0), {}
    for i in range(96):
        present = [name for name in COLOURS if stream.random() < 0.5]
        picture = stream.integers(90, 130, (40, 40, 3)).astype(np.uint8)
        for column, name in enumerate(COLOURS):
            if name in present:
                picture[5:25, 13 * column : 13 * column + 13] = COLOURS[name]
        Image.fromarray(picture).save(folder / "images" / f"{i:03d}.png")
        images[f"{i:03d}.png"] = {
            "split": "train" if i < 64 else "val",
            "labels": [name for name in present if name != "blue"],
            "caption_concepts": [*present, "grey", "large (size)", "dark circle"],
            "caption": f"A photo with {' and '.join(present)} squares." if present else "",
        }
    index = {"name": "colours", "label_names": ["red", "green"], "images": images}
    (folder / "labels.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    torch.manual_seed(0)
    teacher = Backbone("test_efficientnet", (32, 32)).eval()
    encoder = Backbone("test_efficientnet", (32, 32)).eval()
    encoder.load_state_dict(teacher.state_dict())
    for parameter in encoder.body.conv_head.parameters():  # type: ignore[union-attr]
        parameter.data *= 1.1
    return Sources(
        encoder=encoder.requires_grad_(False),
        prepared=input_config("test_efficientnet", (32, 32)),
        teacher=Teacher(
            teacher, nn.Linear(teacher.width, 5), ("circle", "square", "dark", "large", "grey")
        ),
        text=read_text_encoder(write_text_encoder(tmp_path_factory.mktemp("text") / "tiny")),
        trained=TrainedHead(PooledHead(encoder.width, 3), ("green", "car", "red")),
    )


def make_place(photos: Path, out: Path) -> Place:
    cache = out.parent / "cache"
    for folder in (out, cache):
        folder.mkdir(parents=True, exist_ok=True)
    accelerator = make_accelerator(cpu=True)
    return Place(read_labelled_folder(photos), out, cache, accelerator, accelerator.device, 0)


def read_log(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


WEIGHTS = {
    "labels": "label_weight",
    "concepts": "concept_weight",
    "trained": "trained_weight",
    "captions": "caption_weight",
    "teacher": "teacher_weight",
    "ranking": "ranking_weight",
}


@pytest.mark.parametrize("loss", WEIGHTS)
def test_each_loss_falls_on_its_own(
    loss: str, photos: Path, sources: Sources, tmp_path: Path
) -> None:
    others = {weight: 0.0 for name, weight in WEIGHTS.items() if name != loss}
    recipe = RECIPE.model_copy(
        update={
            **others,
            # Twice the teacher's names chooses all of them, so that the sums can be compared.
            **{"epochs": 12, "lr": 0.02, "random_queries": 0, "views": 1, "teacher_names": 10},
        }
    )
    train(make_place(photos, tmp_path / "run"), recipe, sources, ())
    values = [float(row[loss]) for row in read_log(tmp_path / "run")]
    assert len(values) == 12
    # Photos with squares of the same colours have the same caption: which is whose stays open.
    assert values[-1] < (0.96 if loss == "captions" else 0.9) * values[0]


@pytest.mark.parametrize("path", sorted(OPEN_RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipe_is_valid(path: Path) -> None:
    assert OpenRecipe.read(path, {"epochs": "1"}).epochs == 1


def test_trained_labels_are_matched_by_name(sources: Sources) -> None:
    names = Vocabulary(("red", "blue", "green"), ("grey",), ())
    found = match_labels(sources, names)
    assert found is not None
    assert found.theirs.tolist() == [2, 0]
    assert found.ours.tolist() == [0, 2]
    assert match_labels(sources, Vocabulary(("blue",), ("grey",), ())) is None
    assert match_labels(replace(sources, trained=None), names) is None


def test_training_writes_a_checkpoint_bound_to_its_encoders(
    photos: Path, sources: Sources, tmp_path: Path
) -> None:
    found = train(make_place(photos, tmp_path / "run"), RECIPE, sources, ("blue",))
    log = read_log(tmp_path / "run")
    assert [row["epoch"] for row in log] == ["1", "2", "3"]
    for name, value in found.items():
        assert float(log[-1][name]) == pytest.approx(value, rel=1e-4)
    opened = read_open_head(tmp_path / "run" / "open.safetensors")
    assert opened.origin.label_names == ("red", "green")
    assert opened.origin.concept_names == ("dark circle", "grey", "large")
    assert opened.head.config.embedding_template == "a photo of {}"
    assert opened.head.config.num_prototypes == 5
    opened.check_encoder(sources.encoder)
    with pytest.raises(CheckpointError, match="another encoder"):
        opened.check_encoder(sources.teacher.backbone)
    with pytest.raises(CheckpointError, match="another text encoder"):
        opened.check_text_encoder(replace(sources.text, sha256="0"))


def test_evaluation_measures_head_and_baselines_on_the_same_photos(
    photos: Path, sources: Sources, tmp_path: Path
) -> None:
    place = make_place(photos, tmp_path / "run")
    recipe = RECIPE.model_copy(update={"votes": False, "epochs": 1})
    found = train(place, recipe, sources, ())
    opened = read_open_head(tmp_path / "run" / "open.safetensors")
    scores = evaluate_open(opened, sources, place.data, "val")
    # The run measured itself on cached float16 tokens.
    mean = float(scores.head.mean())
    assert mean == pytest.approx(found["val_labels_mAP_percent"], abs=1.0)
    share = place.data.targets(place.data.split("val")).mean(axis=0) * 100
    assert scores.chance.tolist() == pytest.approx(share.tolist())
    assert scores.conse.shape == (2,)
    partly = replace(place.data, complete=False)
    with pytest.raises(DataError, match="complete"):
        evaluate_open(opened, sources, partly, "val")


class _Stopped(Exception):
    pass


def test_resumed_run_equals_an_unbroken_one(
    photos: Path, sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(make_place(photos, tmp_path / "unbroken"), RECIPE, sources, ())
    real_epoch = Run._train_epoch

    def stop_in_the_second(run: Run) -> dict[str, float]:
        if run.epoch == 1:
            raise _Stopped
        return real_epoch(run)

    with monkeypatch.context() as patched:
        patched.setattr(Run, "_train_epoch", stop_in_the_second)
        with pytest.raises(_Stopped):
            train(make_place(photos, tmp_path / "broken"), RECIPE, sources, ())
    train(make_place(photos, tmp_path / "broken"), RECIPE, sources, ())
    assert read_log(tmp_path / "broken") == read_log(tmp_path / "unbroken")
    first, second = (
        read_open_head(tmp_path / run / "open.safetensors").head.state_dict()
        for run in ("unbroken", "broken")
    )
    for key, tensor in first.items():
        torch.testing.assert_close(second[key], tensor, rtol=1e-5, atol=1e-6)
    # Both runs read the same two files for each split.
    assert len(list((tmp_path / "cache").iterdir())) == 4


def test_finished_run_is_measured_again_and_not_resumed_with_other_options(
    photos: Path, sources: Sources, tmp_path: Path
) -> None:
    recipe = RECIPE.model_copy(update={"epochs": 1})
    place = make_place(photos, tmp_path / "run")
    found = train(place, recipe, sources, ("blue",))
    first = read_open_head(tmp_path / "run" / "open.safetensors")
    for field, change in {
        "epochs 1, not 2": {"epochs": 2},
        "votes True, not": {"votes": False},
    }.items():
        with pytest.raises(RecipeError, match=f"begun with {field}"):
            train(place, recipe.model_copy(update=change), sources, ("blue",))
    with pytest.raises(RecipeError, match="begun with concept_names "):
        train(place, recipe, sources, ())
    with pytest.raises(RecipeError, match="begun with init '', not "):
        train(place, recipe, sources, ("blue",), first)
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["epochs"] == 1
    assert train(place, recipe, sources, ("blue",)) == found
    assert len(read_log(tmp_path / "run")) == 1


def test_changed_photo_is_encoded_again(photos: Path, sources: Sources, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(photos, data)
    recipe = RECIPE.model_copy(update={"epochs": 1})
    train(make_place(data, tmp_path / "a"), recipe, sources, ())
    shutil.copyfile(data / "images" / "001.png", data / "images" / "000.png")
    train(make_place(data, tmp_path / "b"), recipe, sources, ())
    assert len(list((tmp_path / "cache").iterdir())) == 6


def test_run_starts_from_the_weights_of_another_head(
    photos: Path, sources: Sources, tmp_path: Path
) -> None:
    recipe = RECIPE.model_copy(update={"epochs": 1})
    train(make_place(photos, tmp_path / "first"), recipe, sources, ("grey",))
    first = read_open_head(tmp_path / "first" / "open.safetensors")
    # So small a step leaves the weights where they start.
    still = recipe.model_copy(update={"lr": 1e-12, "classifier_lr": 1e-12, "seed": 1})
    train(make_place(photos, tmp_path / "second"), still, sources, (), first)
    second = read_open_head(tmp_path / "second" / "open.safetensors")
    assert second.origin.concept_names == ("blue", "dark circle", "grey", "large")
    for key, tensor in first.head.state_dict().items():
        torch.testing.assert_close(second.head.state_dict()[key], tensor, rtol=1e-5, atol=1e-7)


def test_init_refuses_a_head_of_another_build(
    photos: Path, sources: Sources, tmp_path: Path
) -> None:
    place = make_place(photos, tmp_path / "run")
    recipe = RECIPE.model_copy(update={"epochs": 1})
    train(place, recipe, sources, ())
    first = read_open_head(tmp_path / "run" / "open.safetensors")
    for change, reason in (
        ({"decoder_width": 8}, "decoder_width 16, not 8"),
        ({"votes": False}, "num_prototypes 5, not 0"),
        ({"template": "{}"}, "embedding_template 'a photo of {}', not '{}'"),
    ):
        other = recipe.model_copy(update=change)
        with pytest.raises(CheckpointError, match=re.escape(reason)):
            train(make_place(photos, tmp_path / "other"), other, sources, (), first)
    foreign = replace(sources, text=replace(sources.text, sha256="0"))
    with pytest.raises(CheckpointError, match="another text encoder"):
        train(make_place(photos, tmp_path / "other"), recipe, foreign, (), first)
    assert train(make_place(photos, tmp_path / "other"), recipe, sources, (), first)


def test_shared_stages_give_the_tokens_of_both_backbones(
    sources: Sources,
) -> None:
    shared, own, others = share_stages(sources.encoder, sources.teacher.backbone)
    assert sum(p.numel() for p in shared.parameters()) > 0
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        features = shared(images)
        torch.testing.assert_close(own(features), sources.encoder(images))
        torch.testing.assert_close(others(features), sources.teacher.backbone(images))
        shared, own, _ = share_stages(sources.encoder, sources.encoder)
        torch.testing.assert_close(own(shared(images)), sources.encoder(images))


@pytest.mark.parametrize(
    ("hold_out", "kept"),
    [
        ((), ("blue", "dark circle", "grey", "large")),
        (("circle",), ("blue", "grey", "large")),  # a dark circle is one
        (("very large box",), ("blue", "dark circle", "grey")),  # which may just be called large
        (("red", "box"), ("blue", "dark circle", "grey", "large")),  # red is a label
    ],
)
def test_concepts_that_overlap_a_held_out_name_are_held_out(
    photos: Path, hold_out: tuple[str, ...], kept: tuple[str, ...]
) -> None:
    names = choose_names(read_labelled_folder(photos), hold_out)
    assert names.concepts == kept
    assert set(names.held_out) == {"blue", "dark circle", "grey", "large"} - set(kept)


@pytest.mark.parametrize(
    ("hold_out", "caption", "kept"),
    [
        ((), "Two dogs on a bench", True),
        (("dog",), "Two dogs on a bench", False),
        (("Park bench",), "Two dogs on benches", False),
        (("hot dog",), "Two dogs on a bench", False),  # any word of the name will do
        (("car",), "A cart and some scars", True),
        (("red",), "A red square", True),  # red is a label
        (("cat",), "", False),
    ],
)
def test_caption_is_dropped_when_it_shares_a_word_with_a_held_out_name(
    photos: Path, hold_out: tuple[str, ...], caption: str, kept: bool
) -> None:
    folder = read_labelled_folder(photos)
    image = replace(folder.images[0], caption=caption)
    assert choose_captions(folder, (image,), hold_out) == (caption if kept else "",)


def test_hold_out_reads_a_text_file_or_a_labelled_folder(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("grey\n\n dark circle \n")
    assert read_hold_out(tmp_path / "names.txt") == ("grey", "dark circle")
    assert read_hold_out(photos) == ("red", "green")
    with pytest.raises(DataError, match="cannot be read"):
        read_hold_out(tmp_path / "absent.txt")


def test_folder_without_concepts_is_refused(photos: Path) -> None:
    folder = read_labelled_folder(photos)
    bare = replace(folder, images=tuple(replace(i, concepts=()) for i in folder.images))
    with pytest.raises(DataError, match="no caption_concepts"):
        choose_names(bare, ())
    assert choose_names(folder, ()).concepts


def test_a_recipe_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text('template = "a {}"\nepochs = 2\n')
    recipe = OpenRecipe.read(file, {"epochs": "7"})
    assert (recipe.template, recipe.epochs) == ("a {}", 7)
    with pytest.raises(RecipeError, match="template"):
        OpenRecipe.read(None, {"template": "no name"})


def test_damaged_open_head_is_refused(photos: Path, sources: Sources, tmp_path: Path) -> None:
    place = make_place(photos, tmp_path / "run")
    train(place, RECIPE.model_copy(update={"epochs": 1}), sources, ())
    path = tmp_path / "run" / "open.safetensors"
    opened = read_open_head(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="damaged"):
        read_open_head(path)
    write_open_head(path, opened.head, opened.origin)
    assert isinstance(read_open_head(path), OpenHeadCheckpoint)


def test_command_names_a_missing_text_encoder(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", str(photos), "--checkpoint", "none", "--out", str(tmp_path)]
    assert main([*arguments, "--text-encoder", str(tmp_path)]) == 2
    assert "no BERT encoder" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["--device=banana", "--workers=-1"])
def test_missing_device_and_negative_workers_are_refused(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    arguments = ["--data", str(photos), "--checkpoint", "none", "--out", str(tmp_path)]
    with pytest.raises(SystemExit):
        main([*arguments, wrong])
    assert f"argument {wrong.partition('=')[0]}: " in capsys.readouterr().err
    # What is good gets as far as the checkpoint.
    assert main([*arguments, "--device", "cpu", "--workers", "0"]) == 2
    assert "no checkpoint file at none" in capsys.readouterr().err


def test_unwritable_folder_gives_one_line(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", str(photos), "--checkpoint", "none"]
    assert main([*arguments, "--out", str(photos / "labels.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    assert "no checkpoint file at none" in capsys.readouterr().err
