"""Recipes name their mistakes; the shipped ones in small, as `make bundle` runs them."""

from pathlib import Path
from typing import Any

import pytest
from timm.data.auto_augment import RandAugment

from export.__main__ import main as export
from models.average import main as average
from models.checkpoints.checkpoint import read_checkpoint
from models.commands import RequestError
from models.config import InputConfig
from models.train.__main__ import main
from models.train.recipe import Recipe
from models.train.views import training_transform
from tests.models.colours import COLOURS, read_losses, write_colours
from tests.support.serving import labels_of, send_image, serve_app

RECIPES = Path(__file__).parents[3] / "models" / "recipes"
TINY = [
    *("--workers", "0", "--decoder-width", "16", "--feedforward-width", "16", "--num-heads", "2"),
    *("--batch-size", "8", "--ema-decay", "0.8", "--lr", "0.01", "--backbone-lr", "0.01"),
    *("--backbone", "test_efficientnet", "--no-pretrained", "--image-size", "32"),
    *("--train-size", "32", "--epochs", "4", "--device", "cpu"),
]


def test_recipes_lower_the_loss_one_after_the_other_and_the_result_is_served(
    tmp_path: Path,
) -> None:
    (tmp_path / "data").mkdir()
    counts = {"train": 64, "val": 16, "test": 16}
    data = write_colours(tmp_path / "data", counts, tuple(COLOURS), move=False)

    def train(recipe: str, *options: str) -> Path:
        run = tmp_path / recipe
        where = ("--data", str(data), "--out", str(run), "--cache", str(tmp_path / "cache"))
        assert main(["--recipe", str(RECIPES / f"{recipe}.toml"), *where, *TINY, *options]) == 0
        history = read_losses(run)
        assert history[-1] < history[0], recipe
        return run / "model.safetensors"

    def mix(name: str, *parts: tuple[Path, float]) -> Path:
        out = tmp_path / f"{name}.safetensors"
        assert average(["--out", str(out), *(f"{path}={share}" for path, share in parts)]) == 0
        return out

    first = train("lite0")
    second = train("lite0_refine", "--init", str(first))
    middle = mix("middle", (first, 0.4), (second, 0.6))
    third = train("lite0_settle", "--init", str(middle))
    settled = mix("settled", (second, 0.4), (third, 0.6))
    fourth = train("lite0_enlarge", "--init", str(settled))
    model, bundle = mix("model", (settled, 0.5), (fourth, 0.5)), tmp_path / "bundle"
    assert export(["--checkpoint", str(model), "--out", str(bundle)]) == 0
    with serve_app(bundle, label_store="memory") as client:
        answered = labels_of(send_image(client, params={"top_k": 3}))
    assert {name for name, _ in answered} == set(COLOURS)

    assert read_checkpoint(train("lite0_gap")).take_network().config.head.kind == "gap"
    assert {path.parent.name for path in tmp_path.glob("*/recipe.json")} == {
        path.stem for path in RECIPES.glob("*.toml")
    }


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_recipe_never_posterizes_to_0_bits(path: Path) -> None:
    transform: Any = training_transform(Recipe.read(path, {}), InputConfig(height=224, width=224))
    (policy,) = (step for step in transform.transforms if isinstance(step, RandAugment))
    for op in policy.ops:
        # From magnitude 10 on, timm's increasing posterize keeps 0 bits, which Pillow refuses.
        if op.name.startswith("Posterize"):
            strongest = op.magnitude_max or op.magnitude + 5 * op.magnitude_std
            assert op.level_fn(strongest, op.hparams)[0] > 0


def test_shipped_baseline_differs_in_the_head_alone() -> None:
    decoder, gap = (Recipe.read(RECIPES / f"{name}.toml", {}) for name in ("lite0", "lite0_gap"))
    head_fields = {"head", "decoder_width", "feedforward_width"}
    assert decoder.model_dump(exclude=head_fields) == gap.model_dump(exclude=head_fields)
    assert (decoder.head, gap.head) == ("ml_decoder", "gap")


@pytest.mark.parametrize(
    ("text", "reason"),
    [("epochs = 0", "epochs: "), ("speed = 3", "speed: "), ("epochs = ", "cannot be read")],
)
def test_recipe_names_its_mistake_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(RequestError, match=f"^.*{reason}.*$"):
        Recipe.read(path, {})


def test_options_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("epochs = 3\nlr = 0.1")
    assert Recipe.read(path, {"lr": "0.5"}) == Recipe(epochs=3, lr=0.5)
