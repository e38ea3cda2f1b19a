"""Recipes name their mistakes; the shipped baseline differs in the head alone."""

from pathlib import Path

import pytest

from models.commands import RequestError
from models.train.recipe import Recipe

RECIPES = Path(__file__).parents[3] / "models" / "recipes"


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
