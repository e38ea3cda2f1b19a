"""The recipe: every choice of an open head's training, in one frozen record.

In: a TOML file and command line flags. Out: an `OpenRecipe`. Next: `loop.py` follows it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.train.recipe import check_focus, check_heads, read_fields


class OpenRecipe(BaseModel):
    """Choices of a training run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    template: str = Field(
        "a photo of a {}.",
        pattern=r"^[^{}]*\{\}[^{}]*$",
        description="text that is embedded, {} for the name",
    )
    decoder_width: int = Field(256, ge=1, description="D")
    feedforward_width: int = Field(512, ge=1, description="hidden width of the decoder")
    num_heads: int = Field(8, ge=1, description="attention heads")
    dropout: float = Field(0.1, ge=0, lt=1, description="rate in the head")
    votes: bool = Field(True, description="add the votes of a distilled classifier's names")
    sharpness_of_votes: float = Field(20.0, gt=0, description="more listens to the nearest names")

    views: int = Field(2, ge=1, description="copies of each photo to cache; the first as served")
    crop_scale: float = Field(0.5, gt=0, le=1, description="smallest share of a photo in a view")
    color_jitter: float = Field(0.2, ge=0, description="timm's color_jitter, in the other views")

    epochs: int = Field(6, ge=1)
    batch_size: int = Field(64, ge=2)
    lr: float = Field(1.5e-3, gt=0, description="peak of OneCycle, for the decoder")
    classifier_lr: float = Field(3e-4, gt=0, description="peak of OneCycle, for the voting names")
    warmup: float = Field(0.2, gt=0, lt=1, description="share of the steps that lr rises in")
    weight_decay: float = Field(2e-2, ge=0, description="AdamW, on matrices only")
    clip_grad: float = Field(5.0, gt=0, description="largest gradient norm")
    ema_decay: float = Field(0.998, ge=0, lt=1, description="of the averaged weights, per step")

    teacher_names: int = Field(256, ge=2, description="names of the teacher's in a step")
    query_noise: float = Field(0.4, ge=0, description="on embeddings, share of their spread")
    random_queries: int = Field(16, ge=0, description="queries in a step that no photo answers")
    unknown_weight: float = Field(0.2, ge=0, le=1, description="of a concept not in the caption")
    unknown_focus: float = Field(2.0, ge=0, description="focus on the surer of these")
    gamma_neg: float = Field(4.0, ge=0, description="asymmetric loss: focus on negatives")
    clip: float = Field(0.05, ge=0, lt=1, description="asymmetric loss: probability margin")
    sharpness: float = Field(1.5, gt=0, description="of the teacher's ranking of a batch's photos")

    # The default bundle's head was trained with this one.
    label_weight: float = Field(
        1 / 64, ge=0, description="of the labels' loss, and of the random queries'"
    )
    concept_weight: float = Field(1.0, ge=0, description="of the concepts' loss")
    teacher_weight: float = Field(1.0, ge=0, description="of the teacher's probabilities")
    ranking_weight: float = Field(2.0, ge=0, description="of the teacher's ranking of photos")
    caption_weight: float = Field(1.0, ge=0, description="of which caption is which photo's")
    trained_weight: float = Field(0.3, ge=0, description="of what the encoder's own head says")
    seed: int = Field(0, description="of every random choice")

    @model_validator(mode="after")
    def _choices_fit(self) -> Self:
        check_focus(self.gamma_neg)
        check_heads(self.num_heads, self.decoder_width)
        return self


def read_open_recipe(path: Path | None, overrides: dict[str, Any]) -> OpenRecipe:
    """Reads a recipe from TOML and puts overrides (field -> value or text) on top.

    Raises:
        RecipeError: an unreadable file, an unknown field or a value out of range.
    """
    return read_fields(OpenRecipe, path, overrides)
