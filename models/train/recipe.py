"""Recipes: every choice of a training run, in frozen records read from TOML and flags."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from models.checkpoints.description import first_reason
from models.commands import RequestError

WHOLE_BACKBONE = 99
"""`frozen_stages` that freezes a backbone from end to end."""


class BaseRecipe(BaseModel):
    """Choices that every kind of run has; each kind sets defaults of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    decoder_width: int = Field(384, ge=1, description="D")
    feedforward_width: int = Field(1024, ge=1, description="hidden width of the decoder")
    num_heads: int = Field(8, ge=1, description="attention heads")
    dropout: float = Field(0.1, ge=0, lt=1, description="rate in the head")
    epochs: int = Field(10, ge=1)
    batch_size: int = Field(64, ge=1, description="photos in a step")
    lr: float = Field(1e-3, gt=0, description="peak of OneCycle, for the head")
    warmup: float = Field(0.2, gt=0, lt=1, description="share of the steps in which lr rises")
    weight_decay: float = Field(1e-2, ge=0, description="on matrices and kernels only")
    clip_grad: float = Field(1.0, gt=0, description="largest gradient norm")
    ema_decay: float = Field(0.997, ge=0, lt=1, description="of the averaged weights, per step")
    gamma_neg: float = Field(4.0, ge=0, description="asymmetric loss: focus on negatives")
    clip: float = Field(0.05, ge=0, lt=1, description="asymmetric loss: probability margin")
    seed: int = Field(0, description="of every random choice")

    @model_validator(mode="after")
    def _choices_fit(self) -> Self:
        if self.decoder_width % self.num_heads:
            raise ValueError(
                f"num_heads {self.num_heads} does not divide decoder_width {self.decoder_width}"
            )
        # The slope of p^gamma is infinite at p = 0: the loss would soon be NaN.
        if 0 < self.gamma_neg < 1:
            raise ValueError("gamma_neg must be 0, or at least 1")
        return self

    @classmethod
    def read(cls, path: Path | None, overrides: Mapping[str, Any]) -> Self:
        """Reads a TOML file and puts overrides (field -> value or text) on top."""
        values: dict[str, Any] = {}
        if path is not None:
            try:
                values = tomllib.loads(path.read_text())
            except (OSError, ValueError) as error:
                raise RequestError(f"the recipe {path} cannot be read: {error}") from error
        try:
            return cls.model_validate(values | dict(overrides))
        except ValidationError as error:
            raise RequestError(f"recipe: {first_reason(error)}") from error


class Recipe(BaseRecipe):
    """Choices of a training run on labelled photos.

    With `frozen_stages` above 0, the frozen part runs once over `views` augmented copies of each
    photo, which the epochs take in turn. With 0, each epoch augments photos anew.
    """

    backbone: str = Field("tf_efficientnet_lite0", description="timm name")
    pretrained: bool = Field(True, description="start from ImageNet weights")
    frozen_stages: int = Field(
        WHOLE_BACKBONE,
        ge=0,
        description="leading backbone stages that stay frozen: 99 is the whole backbone, 0 none; "
        "other numbers are for EfficientNets and the like",
    )
    views: int = Field(4, ge=1, description="augmented copies of each photo to cache")

    head: Literal["ml_decoder", "gap"] = Field("ml_decoder", description="kind of head")
    num_groups: int | None = Field(None, ge=1, description="label queries; unset is one a label")

    image_size: int = Field(224, ge=16, description="pixels, of the served network")
    train_size: int | None = Field(
        None, ge=16, description="pixels, of the training crops; unset is image_size"
    )
    crop_scale: float = Field(0.4, gt=0, le=1, description="smallest share of a photo in a crop")
    auto_augment: str | None = Field(
        "rand-m7-mstd0.5-inc1", description="timm's auto_augment, mmax9 at most"
    )
    erase: float = Field(0.0, ge=0, le=1, description="probability of timm's random erasing")

    mixed_precision: Literal["no", "bf16"] = Field("no", description="of the forward pass")
    backbone_lr: float = Field(2e-4, gt=0, description="peak of OneCycle, for the backbone")

    @property
    def crop_size(self) -> int:
        """Pixels on a side of the training crops."""
        return self.train_size or self.image_size
