"""Frozen descriptions of a network: which backbone, which head, how photos are prepared.

In: a JSON document (stored inside each checkpoint) or keyword arguments. Out: a
`NetworkConfig`, all that `network.py` needs to build the module.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
ResizeMode = Literal["squash", "crop"]
Triple = tuple[float, float, float]


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InputConfig(_Config):
    """How an upright RGB photo becomes the backbone's float input.

    Attributes:
        height: H, pixels.
        width: W, pixels.
        mean: subtracted per channel, after pixels are scaled to 0..1.
        std: divided by per channel, after the mean.
        interpolation: antialiased Pillow filter for the resize.
        resize_mode: `squash` ignores the aspect ratio; `crop` resizes the shorter side
            to size / crop_pct and takes the centre.
        crop_pct: share kept by the centre crop, (0, 1].
    """

    height: int = Field(ge=1)
    width: int = Field(ge=1)
    mean: Triple = (0.0, 0.0, 0.0)
    std: Triple = (1.0, 1.0, 1.0)
    interpolation: Interpolation = "bilinear"
    resize_mode: ResizeMode = "squash"
    crop_pct: float = Field(default=1.0, gt=0.0, le=1.0)


class MLDecoderConfig(_Config):
    """ML-Decoder head (arXiv 2111.12933, section 3).

    Attributes:
        kind: tag of this head.
        num_classes: N, number of logits.
        encoder_width: C, channels of the tokens.
        num_groups: number of label queries asked for; None means full decoding, one
            query a class. See `num_queries` for how many are really used.
        decoder_width: D.
        num_heads: attention heads; divides D.
        feedforward_width: hidden width of the feed-forward layer.
        dropout: rate in training, 0..1.
    """

    kind: Literal["ml_decoder"] = "ml_decoder"
    num_classes: int = Field(ge=1)
    encoder_width: int = Field(ge=1)
    num_groups: int | None = Field(default=None, ge=1)
    decoder_width: int = Field(default=768, ge=1)
    num_heads: int = Field(default=8, ge=1)
    feedforward_width: int = Field(default=2048, ge=1)
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _heads_divide_width(self) -> MLDecoderConfig:
        if self.decoder_width % self.num_heads:
            raise ValueError(f"{self.num_heads} heads do not divide width {self.decoder_width}")
        return self

    @property
    def group_size(self) -> int:
        """Classes that one query answers for: ceil(N / groups)."""
        return math.ceil(
            self.num_classes / min(self.num_groups or self.num_classes, self.num_classes)
        )

    @property
    def num_queries(self) -> int:
        """Q, the queries in use: ceil(N / group size).

        It is less than `num_groups` where rounding the group size up leaves the last
        groups without a class (9,605 classes in 200 groups use 197).
        """
        return math.ceil(self.num_classes / self.group_size)


class GapConfig(_Config):
    """Global average pooling and one linear layer, the paper's baseline.

    Attributes:
        kind: tag of this head.
        num_classes: N, number of logits.
        encoder_width: C, channels of the tokens.
        dropout: rate in training, on the pooled features, 0..1.
    """

    kind: Literal["gap"] = "gap"
    num_classes: int = Field(ge=1)
    encoder_width: int = Field(ge=1)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)


HeadConfig = Annotated[MLDecoderConfig | GapConfig, Field(discriminator="kind")]


class NetworkConfig(_Config):
    """A whole network.

    Attributes:
        backbone: timm name.
        input: how photos are prepared.
        head: the head's own configuration.
    """

    backbone: str
    input: InputConfig
    head: HeadConfig
