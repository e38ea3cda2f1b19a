"""The recipe: every choice of a training run, in one frozen record.

In: a TOML file and command line flags. Out: a `Recipe`. Next: `loop.py` follows it.
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

WHOLE_BACKBONE = 99
"""`frozen_stages` of a backbone that is frozen from end to end."""

RecipeT = TypeVar("RecipeT", bound=BaseModel)


class RecipeError(Exception):
    """A recipe file is unreadable or inconsistent; the message is one line for a person."""


class Recipe(BaseModel):
    """Choices of a training run.

    Frozen stages and views belong together: with `frozen_stages` above zero the frozen
    part of the backbone runs once over `views` augmented copies of each photo, and the
    epochs take these in turn; with zero every photo is augmented anew each epoch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: str = Field("tf_efficientnet_lite0", description="timm name")
    pretrained: bool = Field(True, description="start from ImageNet weights")
    frozen_stages: int = Field(
        WHOLE_BACKBONE,
        ge=0,
        description="leading backbone stages that stay frozen: 99 is the whole backbone, 0 none; "
        "other numbers are for EfficientNets and the like",
    )
    views: int = Field(4, ge=1, description="augmented copies of each photo to cache")

    head: Literal[
        "ml_decoder", "gap", "zero_shot_ml_decoder", "query2label", "transformer_decoder"
    ] = Field("ml_decoder", description="kind of head")
    encoder_layers: int = Field(1, ge=0, description="Query2Label: layers over the tokens")
    decoder_layers: int = Field(2, ge=1, description="Query2Label, transformer decoder: layers")
    random_queries: int = Field(0, ge=0, description="zero-shot: random queries with target 0")
    query_noise: float = Field(
        0.0, ge=0, description="zero-shot: noise on embeddings, a share of their deviation"
    )
    decoder_width: int = Field(384, ge=1, description="D")
    feedforward_width: int = Field(1024, ge=1, description="hidden width of the decoder")
    num_groups: int | None = Field(None, ge=1, description="label queries; unset is one a label")
    num_heads: int = Field(8, ge=1, description="attention heads")
    dropout: float = Field(0.1, ge=0, lt=1, description="rate in the head")

    image_size: int = Field(224, ge=16, description="pixels, of the served network")
    train_size: int | None = Field(
        None, ge=16, description="pixels, of the training crops; unset is image_size"
    )
    crop_scale: float = Field(0.4, gt=0, le=1, description="smallest share of a photo in a crop")
    train_resize: Literal["crop", "squash"] = Field(
        "crop", description="random crops, or whole photos squashed (the authors of ML-Decoder)"
    )
    cutout: float = Field(
        0.0, ge=0, le=1, description="side of a box of one colour, a share of a squashed photo's"
    )
    repeats: int = Field(1, ge=1, description="augmented copies of a photo in an epoch's batches")
    auto_augment: str | None = Field(
        "rand-m7-mstd0.5-inc1", description="timm's auto_augment, mmax9 at most"
    )
    color_jitter: float = Field(0.0, ge=0, description="timm's color_jitter")
    erase: float = Field(0.0, ge=0, le=1, description="probability of timm's random erasing")
    mixup: float = Field(0.0, ge=0, description="alpha of mixup between the photos of a batch")
    cutmix: float = Field(0.0, ge=0, description="alpha of CutMix; single-label data only")
    single_label: bool = Field(False, description="one label a photo: scores are a softmax")

    epochs: int = Field(10, ge=1)
    batch_size: int = Field(64, ge=1, description="photos a process and forward pass")
    accumulate: int = Field(1, ge=1, description="batches a step of the optimiser")
    mixed_precision: Literal["no", "fp16", "bf16"] = Field("no", description="of the forward pass")
    optimizer: Literal["adamw", "adam", "lamb"] = Field("adamw", description="who takes the steps")
    lr: float = Field(1e-3, gt=0, description="peak of OneCycle, for the head")
    backbone_lr: float = Field(2e-4, gt=0, description="peak of OneCycle, for the backbone")
    warmup: float = Field(0.2, gt=0, lt=1, description="share of the steps that lr rises in")
    weight_decay: float = Field(1e-2, ge=0, description="on matrices and kernels only")
    clip_grad: float = Field(1.0, ge=0, description="largest gradient norm; 0 sets no limit")
    freeze_batch_norm: bool = Field(
        True, description="keep a pretrained backbone's batch norms at their statistics"
    )
    loss: Literal["asymmetric", "bce"] = Field("asymmetric", description="kind of loss")
    bce_threshold: float | None = Field(
        None, ge=0, lt=1, description="mixed targets above it count as present"
    )
    gamma_neg: float = Field(4.0, ge=0, description="asymmetric loss: focus on negatives")
    gamma_pos: float = Field(0.0, ge=0, description="asymmetric loss: focus on positives")
    clip: float = Field(0.05, ge=0, lt=1, description="asymmetric loss: probability margin")
    focal_gradient: bool = Field(
        True, description="asymmetric loss: the focusing weight passes gradients"
    )
    ema_decay: float = Field(0.997, ge=0, lt=1, description="of the averaged weights, per step")
    seed: int = Field(0, description="of every random choice")

    @model_validator(mode="after")
    def _choices_fit(self) -> Self:
        if self.cutmix and not self.single_label:
            raise ValueError("cutmix wants single_label: a cut-out part may hold any of several")
        if self.single_label and (self.mixup or self.cutmix) and self.batch_size < 2:
            raise ValueError("mixup and cutmix of single_label want a batch_size of 2 and more")
        if self.cutout and self.train_resize != "squash":
            raise ValueError('cutout wants train_resize = "squash"')
        if self.head != "gap":
            check_heads(self.num_heads, self.decoder_width)
        if self.head == "query2label" and self.decoder_width % 4:
            raise ValueError("query2label wants a decoder_width that 4 divides, for its positions")
        return self

    @model_validator(mode="after")
    def _focus_has_a_gradient(self) -> Self:
        if self.focal_gradient:
            check_focus(self.gamma_neg, self.gamma_pos)
        return self

    @property
    def crop_size(self) -> int:
        """Pixels on a side of the training crops."""
        return self.train_size or self.image_size


def check_heads(num_heads: int, decoder_width: int) -> None:
    """Makes sure that attention heads share the decoder's width evenly.

    Raises:
        ValueError: they do not.
    """
    if decoder_width % num_heads:
        raise ValueError(f"num_heads {num_heads} does not divide decoder_width {decoder_width}")


def check_focus(*gammas: float) -> None:
    """Makes sure that a focusing weight p^gamma has a gradient where p is 0.

    Raises:
        ValueError: it has none, and training would stop at losses that are no numbers.
    """
    if any(0 < gamma < 1 for gamma in gammas):
        raise ValueError("gamma_neg and gamma_pos are 0, or 1 and more")


def read_recipe(path: Path | None, overrides: dict[str, Any]) -> Recipe:
    """Reads a recipe from TOML and puts overrides (field -> value or text) on top.

    Raises:
        RecipeError: an unreadable file, an unknown field or a value out of range.
    """
    return read_fields(Recipe, path, overrides)


def read_fields(kind: type[RecipeT], path: Path | None, overrides: dict[str, Any]) -> RecipeT:
    """Reads a recipe of any kind, as `read_recipe` does.

    Raises:
        RecipeError: an unreadable file, an unknown field or a value out of range.
    """
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RecipeError(f"cannot read the recipe {path}") from error
    try:
        return kind.model_validate(values | overrides)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise RecipeError(f"recipe: {where}{first['msg']}") from error


def add_recipe_flags(parser: argparse.ArgumentParser, kind: type[BaseModel]) -> None:
    """Adds a flag for each field of a recipe of any kind; one that is not given is None."""
    group = parser.add_argument_group("recipe")
    for name, field in kind.model_fields.items():
        options: dict[str, Any] = {"help": f"{field.description or ''} (default {field.default})"}
        if isinstance(field.default, bool):
            options["action"] = argparse.BooleanOptionalAction
        group.add_argument(f"--{name.replace('_', '-')}", **options, default=None)


def read_workers(text: str) -> int:
    """Reads the number of processes that load photos, for `argparse`.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def given_fields(arguments: argparse.Namespace, kind: type[BaseModel]) -> dict[str, Any]:
    """Returns the recipe's fields that the command line gives, for `read_fields`."""
    fields = vars(arguments)
    return {name: v for name in kind.model_fields if (v := fields[name]) is not None}
