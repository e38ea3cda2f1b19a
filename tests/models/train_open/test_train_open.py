"""Training of an open head on generated photos, with a tiny encoder and tiny texts."""

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from models.backbones.backbone import Backbone, input_config
from models.checkpoints.description import CheckpointError
from models.checkpoints.open_head import OpenHeadCheckpoint, read_open_head
from models.commands import RequestError
from models.config import GapConfig
from models.data.labelled_folder import read_labelled_folder
from models.data.records import DataError
from models.heads.baselines import Gap
from models.text import read_text_encoder
from models.train.command import RunContext
from models.train_open.__main__ import main, train
from models.train_open.names import Vocabulary, choose_captions, choose_names
from models.train_open.recipe import OpenRecipe
from models.train_open.task import match_labels
from models.train_open.teacher import Sources, Teacher, share_stages
from tests.models.colours import read_log, stop_in_second_epoch, write_colours
from tests.models.tiny_text import write_text_encoder

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
    """Blue is only known from captions."""
    folder = tmp_path_factory.mktemp("colours")
    return write_colours(folder, {"train": 64, "val": 32}, ("red", "green"), move=False)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    torch.manual_seed(0)
    teacher = Backbone("test_efficientnet", (32, 32)).eval()
    encoder = Backbone("test_efficientnet", (32, 32)).eval()
    encoder.load_state_dict(teacher.state_dict())
    for parameter in encoder.body.conv_head.parameters():  # type: ignore[union-attr]
        parameter.data *= 1.1
    classifier = nn.Linear(teacher.width, 5)
    return Sources(
        encoder=encoder.requires_grad_(False),
        prepared=input_config("test_efficientnet", (32, 32)),
        head=Gap(GapConfig(num_classes=3, encoder_width=encoder.width)),
        label_names=("green", "car", "red"),
        teacher=Teacher(teacher, classifier, ("circle", "square", "dark", "large", "grey")),
        text=read_text_encoder(write_text_encoder(tmp_path_factory.mktemp("text") / "tiny")),
    )


@dataclass
class Runs:
    """Runs in one folder, with one cache."""

    folder: Path
    photos: Path
    sources: Sources

    def fit(
        self,
        name: str,
        hold_out: tuple[str, ...] = (),
        init: OpenHeadCheckpoint | None = None,
        **changes: Any,
    ) -> dict[str, float]:
        """Trains for an epoch, if the changes of the recipe give no other number."""
        out, cache = self.folder / name, self.folder / "cache"
        for folder in (out, cache):
            folder.mkdir(exist_ok=True)
        context = RunContext(read_labelled_folder(self.photos), out, cache, torch.device("cpu"), 0)
        recipe = RECIPE.model_copy(update={"epochs": 1, **changes})
        return train(context, recipe, self.sources, hold_out, init)

    def read(self, name: str) -> OpenHeadCheckpoint:
        return read_open_head(self.folder / name / "open.safetensors")

    def read_log(self, name: str) -> list[dict[str, str]]:
        return read_log(self.folder / name)


@pytest.fixture(scope="module")
def runs(photos: Path, sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs of this file, each with a name of its own; `first` is finished and held out blue."""
    made = Runs(tmp_path_factory.mktemp("runs"), photos, sources)
    made.fit("first", ("blue",))
    return made


WEIGHTS = {
    "labels": "label_weight",
    "concepts": "concept_weight",
    "trained": "trained_weight",
    "captions": "caption_weight",
    "teacher": "teacher_weight",
    "ranking": "ranking_weight",
}


@pytest.mark.parametrize("loss", WEIGHTS)
def test_each_loss_falls_on_its_own(loss: str, runs: Runs) -> None:
    others = {weight: 0.0 for name, weight in WEIGHTS.items() if name != loss}
    # Twice the teacher's names chooses all of them, so that the sums can be compared.
    options = {"epochs": 12, "lr": 0.02, "random_queries": 0, "views": 1, "teacher_names": 10}
    runs.fit(loss, **others, **options)
    values = [float(row[loss]) for row in runs.read_log(loss)]
    assert len(values) == 12
    # Photos with squares of the same colours have the same caption: which is whose stays open.
    assert values[-1] < (0.96 if loss == "captions" else 0.9) * values[0]


def test_trained_labels_are_matched_by_name(sources: Sources) -> None:
    names = Vocabulary(("red", "blue", "green"), ("grey",), ())
    matched = match_labels(sources, names)
    assert matched.head_columns.tolist() == [2, 0]
    assert matched.run_columns.tolist() == [0, 2]
    assert match_labels(sources, Vocabulary(("blue",), ("grey",), ())) is None
    assert match_labels(replace(sources, label_names=()), names) is None


def test_training_writes_a_checkpoint_bound_to_its_encoders(runs: Runs, sources: Sources) -> None:
    opened = runs.read("first")
    assert opened.origin.label_names == ("red", "green")
    assert opened.origin.concept_names == ("dark circle", "grey", "large")
    assert opened.head.config.embedding_template == "a photo of {}"
    assert opened.head.config.num_prototypes == 5
    opened.check_encoder(sources.encoder)
    with pytest.raises(CheckpointError, match="another encoder"):
        opened.check_encoder(sources.teacher.backbone)
    with pytest.raises(CheckpointError, match="another text encoder"):
        opened.check_text_encoder(replace(sources.text, sha256="0"))


def test_finished_run_is_measured_again_and_not_resumed_with_other_options(runs: Runs) -> None:
    for reason, hold_out, init, changes in (
        ("epochs 1, not 2", ("blue",), None, {"epochs": 2}),
        ("concept_names ", (), None, {}),
        ("init '', not ", ("blue",), runs.read("first"), {}),
    ):
        with pytest.raises(RequestError, match=f"begun with {reason}"):
            runs.fit("first", hold_out, init, **changes)
    assert json.loads((runs.folder / "first" / "recipe.json").read_text())["epochs"] == 1
    figures, (log,) = runs.fit("first", ("blue",)), runs.read_log("first")
    for name, value in figures.items():
        assert float(log[name]) == pytest.approx(value, rel=1e-4)


def test_resumed_run_equals_an_unbroken_one_and_a_changed_photo_is_encoded_again(
    photos: Path, sources: Sources, tmp_path: Path
) -> None:
    runs = Runs(tmp_path, Path(shutil.copytree(photos, tmp_path / "data")), sources)
    runs.fit("unbroken", epochs=3)
    with stop_in_second_epoch():
        runs.fit("broken", epochs=3)
    runs.fit("broken", epochs=3)
    assert runs.read_log("broken") == runs.read_log("unbroken")
    first, second = (runs.read(run).head.state_dict() for run in ("unbroken", "broken"))
    torch.testing.assert_close(second, first, rtol=1e-5, atol=1e-6)
    # Both runs read the same two files for each split.
    assert len(list((tmp_path / "cache").iterdir())) == 4
    images = runs.photos / "images"
    shutil.copyfile(images / "001.png", images / "000.png")
    runs.fit("changed")
    assert len(list((tmp_path / "cache").iterdir())) == 6


def test_run_starts_from_the_weights_of_another_head(runs: Runs) -> None:
    first = runs.read("first")
    # So small a step leaves the weights where they start.
    runs.fit("second", (), first, lr=1e-12, classifier_lr=1e-12, seed=1)
    second = runs.read("second")
    assert second.origin.concept_names == ("blue", "dark circle", "grey", "large")
    expected = first.head.state_dict()
    torch.testing.assert_close(second.head.state_dict(), expected, rtol=1e-5, atol=1e-7)


def test_init_refuses_a_head_of_another_build(runs: Runs, sources: Sources) -> None:
    first = runs.read("first")
    changes: dict[str, dict[str, Any]] = {
        "decoder_width 16, not 8": {"decoder_width": 8},
        "embedding_template 'a photo of {}', not '{}'": {"template": "{}"},
    }
    for reason, change in changes.items():
        with pytest.raises(CheckpointError, match=re.escape(reason)):
            runs.fit("refused", (), first, **change)
    others = replace(runs, sources=replace(sources, text=replace(sources.text, sha256="0")))
    with pytest.raises(CheckpointError, match="another text encoder"):
        others.fit("refused", (), first)


def test_shared_stages_give_the_tokens_of_both_backbones(sources: Sources) -> None:
    shared, student, others = share_stages(sources.encoder, sources.teacher.backbone)
    assert sum(p.numel() for p in shared.parameters()) > 0
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        features = shared(images)
        torch.testing.assert_close(student(features), sources.encoder(images))
        torch.testing.assert_close(others(features), sources.teacher.backbone(images))
        shared, student, _ = share_stages(sources.encoder, sources.encoder)
        torch.testing.assert_close(student(shared(images)), sources.encoder(images))


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
    folder = read_labelled_folder(photos)
    names = choose_names(folder, hold_out)
    assert names.concepts == kept
    assert set(names.held_out) == {"blue", "dark circle", "grey", "large"} - set(kept)
    bare = replace(folder, images=tuple(replace(i, concepts=()) for i in folder.images))
    with pytest.raises(DataError, match="no caption_concepts"):
        choose_names(bare, hold_out)


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


@pytest.mark.parametrize("path", sorted(OPEN_RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipe_is_valid_and_a_template_without_a_name_is_not(path: Path) -> None:
    assert OpenRecipe.read(path, {"epochs": "1"}).epochs == 1
    with pytest.raises(RequestError, match="template"):
        OpenRecipe.read(path, {"template": "no name"})


def test_mistakes_on_the_command_line_give_one_line(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", str(photos), "--checkpoint", "none"]
    for options, reason in {
        ("--device=cpu", "--workers=0"): "no checkpoint file at none",
        (f"--text-encoder={tmp_path}",): "no BERT encoder",
        (f"--out={photos / 'labels.json'}",): "labels.json",
    }.items():
        assert main([*arguments, "--out", str(tmp_path), *options]) == 2
        error = capsys.readouterr().err
        assert reason in error
        assert error.count("\n") == 1
