"""Recipes: every choice of a training run, in frozen records read from TOML and flags."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from models.commands import RequestError

WHOLE_BACKBONE = 99
"""`frozen_stages` that freezes a backbone from end to end."""


class RecipeError(RequestError):
    """A recipe is unreadable or inconsistent, or not the recipe of the run in a folder."""


class BaseRecipe(BaseModel):
    """Choices that every kind of run has; each kind sets defaults of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    decoder_width: int = Field(384, ge=1, description="D")
    feedforward_width: int = Field(1024, ge=1, description="hidden width of the decoder")
    num_heads: int = Field(8, ge=1, description="attention heads")
    dropout: float = Field(0.1, ge=0, lt=1, description="rate in the head")
    epochs: int = Field(10, ge=1)
    batch_size: int = Field(64, ge=1, description="photos in a forward pass of a process")
    lr: float = Field(1e-3, gt=0, description="peak of OneCycle, for the head")
    warmup: float = Field(0.2, gt=0, lt=1, description="share of the steps in which lr rises")
    weight_decay: float = Field(1e-2, ge=0, description="on matrices and kernels only")
    clip_grad: float = Field(1.0, ge=0, description="largest gradient norm; 0 sets no limit")
    ema_decay: float = Field(0.997, ge=0, lt=1, description="of the averaged weights, per step")
    ema_warmup: bool = Field(
        True, description="raise ema_decay from 0 in the first steps: by step n to 1 - n^(-2/3)"
    )
    gamma_neg: float = Field(4.0, ge=0, description="asymmetric loss: focus on negatives")
    clip: float = Field(0.05, ge=0, lt=1, description="asymmetric loss: probability margin")
    seed: int = Field(0, description="of every random choice")

    @classmethod
    def read(cls, path: Path | None, overrides: Mapping[str, Any]) -> Self:
        """Reads a TOML file and puts overrides (field -> value or text) on top."""
        values: dict[str, Any] = {}
        if path is not None:
            try:
                values = tomllib.loads(path.read_text())
            except (OSError, ValueError) as error:
                raise RecipeError(f"the recipe {path} cannot be read: {error}") from error
        try:
            return cls.model_validate(values | dict(overrides))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = "".join(f"{part}: " for part in first["loc"])
            raise RecipeError(f"recipe: {field}{first['msg']}") from error


class Recipe(BaseRecipe):
    """Choices of a training run on labelled photos.

    With `frozen_stages` above 0, the frozen part of the backbone runs once over `views` augmented
    copies of each photo. The epochs take these in turn. With 0, every photo is augmented anew in
    each epoch.
    """

    backbone: str = Field("tf_efficientnet_lite0", description="timm name")
    pretrained: bool = Field(True, description="start from ImageNet weights")
    frozen_stages: int = Field(
        WHOLE_BACKBONE,
        ge=0,
        description="leading backbone stages that stay frozen: 99 is the whole backbone, 0 none; "
        "other numbers are for EfficientNets and the like",
    )
    frozen_names: str | None = Field(
        None, description="regular expression for timm's names of backbone parameters to freeze"
    )
    views: int = Field(4, ge=1, description="augmented copies of each photo to cache")

    head: Literal["ml_decoder", "gap", "zero_shot_ml_decoder", "query2label"] = Field(
        "ml_decoder", description="kind of head"
    )
    encoder_layers: int = Field(1, ge=0, description="Query2Label: layers over the tokens")
    decoder_layers: int = Field(2, ge=1, description="Query2Label: layers over the queries")
    random_queries: int = Field(0, ge=0, description="zero-shot: random queries with target 0")
    query_noise: float = Field(
        0.0, ge=0, description="zero-shot: noise on embeddings, a share of their deviation"
    )
    relevant_photos: bool = Field(
        False,
        description="only photos with a label (the authors of ML-Decoder); zero-shot: a seen one "
        "in training, an unseen one in validation",
    )
    num_groups: int | None = Field(None, ge=1, description="label queries; unset is one a label")

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
        "rand-m7-mstd0.5-inc1",
        description="timm's auto_augment, mmax9 at most; for squashed photos also randaugment, as "
        "the package of this name has it",
    )
    erase: float = Field(0.0, ge=0, le=1, description="probability of timm's random erasing")
    mixup: float = Field(0.0, ge=0, description="alpha of mixup between the photos of a batch")
    cutmix: float = Field(0.0, ge=0, description="alpha of CutMix; single-label data only")
    single_label: bool = Field(False, description="one label a photo: scores are a softmax")

    accumulate: int = Field(1, ge=1, description="batches in a step of the optimiser")
    mixed_precision: Literal["no", "fp16", "bf16"] = Field("no", description="of the forward pass")
    optimizer: Literal["adamw", "adam", "lamb"] = Field("adamw", description="optimiser")
    decay_all: bool = Field(False, description="decay vectors too, such as biases and norms")
    backbone_lr: float = Field(2e-4, gt=0, description="peak of OneCycle, for the backbone")
    freeze_batch_norm: bool = Field(
        True, description="keep a pretrained backbone's batch norms at their statistics"
    )
    loss: Literal["asymmetric", "bce"] = Field("asymmetric", description="kind of loss")
    bce_threshold: float | None = Field(
        None, ge=0, lt=1, description="mixed targets above it count as present"
    )
    gamma_pos: float = Field(0.0, ge=0, description="asymmetric loss: focus on positives")
    focal_gradient: bool = Field(
        True, description="asymmetric loss: the focusing weight passes gradients"
    )

    @model_validator(mode="after")
    def _choices_fit(self) -> Self:
        if self.cutmix and not self.single_label:
            raise ValueError("cutmix needs single_label: a cut-out part may show any of several")
        if self.single_label and (self.mixup or self.cutmix) and self.batch_size < 2:
            raise ValueError("batch_size must be at least 2 to mix photos of single_label")
        if self.cutout and self.train_resize != "squash":
            raise ValueError('cutout needs train_resize = "squash"')
        if self.head != "gap":
            check_heads(self)
        if self.head == "query2label" and self.decoder_width % 4:
            raise ValueError("decoder_width of query2label must be divisible by 4: its positions")
        if self.focal_gradient:
            check_focus(self.gamma_neg, self.gamma_pos)
        return self

    @property
    def crop_size(self) -> int:
        """Pixels on a side of the training crops."""
        return self.train_size or self.image_size


def check_heads(recipe: BaseRecipe) -> None:
    """Raises ValueError if the attention heads do not divide the decoder's width."""
    if recipe.decoder_width % recipe.num_heads:
        raise ValueError(
            f"num_heads {recipe.num_heads} does not divide decoder_width {recipe.decoder_width}"
        )


def check_focus(*gammas: float) -> None:
    """Raises ValueError for a focus between 0 and 1."""
    # The slope of p^gamma is infinite at p = 0: the loss would soon be NaN.
    if any(0 < gamma < 1 for gamma in gammas):
        raise ValueError("gamma_neg and gamma_pos must be 0, or at least 1")
