"""Frozen descriptions of a network: which backbone, which head, how photos are prepared.

In: a JSON document (stored inside each checkpoint) or keyword arguments. Out: a
`NetworkConfig`, all that `network.py` needs to build the module.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
ResizeMode = Literal["squash", "crop"]
Activation = Literal["sigmoid", "softmax"]
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


class DecoderConfig(_Config):
    """Widths of an attention decoder over image tokens; each head below adds its own.

    Attributes:
        encoder_width: C, channels of the tokens.
        decoder_width: D.
        num_heads: attention heads; divides D.
        feedforward_width: hidden width of the feed-forward layers.
        dropout: rate in training, 0..1.
    """

    encoder_width: int = Field(ge=1)
    decoder_width: int = Field(default=768, ge=1)
    num_heads: int = Field(default=8, ge=1)
    feedforward_width: int = Field(default=2048, ge=1)
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.decoder_width % self.num_heads:
            raise ValueError(f"{self.num_heads} heads do not divide width {self.decoder_width}")
        return self


class MLDecoderConfig(DecoderConfig):
    """ML-Decoder head (arXiv 2111.12933, section 3).

    Attributes:
        kind: tag of this head.
        num_classes: N, number of logits.
        num_groups: number of label queries asked for; None means full decoding, one
            query a class. See `num_queries` for how many are really used.
    """

    kind: Literal["ml_decoder"] = "ml_decoder"
    num_classes: int = Field(ge=1)
    num_groups: int | None = Field(default=None, ge=1)

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


class ZeroShotMLDecoderConfig(DecoderConfig):
    """Zero-shot ML-Decoder (arXiv 2111.12933, section 3.4): label queries from text.

    Attributes:
        kind: tag of this head.
        embedding_width: E, width of a label's text embedding.
        embedding_encoder: name of what made the embeddings; `unknown` where nobody says.
        embedding_template: how a label's name becomes the text that is embedded; `{}` is
            the name.
        num_prototypes: P, names of a classifier that vote for labels beside the decoder
            (`name_votes.py`); 0 leaves it out, which is the paper's head.
    """

    kind: Literal["zero_shot_ml_decoder"] = "zero_shot_ml_decoder"
    embedding_width: int = Field(ge=1)
    embedding_encoder: str = "unknown"
    embedding_template: str = "{}"
    num_prototypes: int = Field(default=0, ge=0)

    @property
    def query_width(self) -> int:
        """K, width of an encoded label: a query, its projection, and the prototypes' votes."""
        return 2 * self.decoder_width + self.num_prototypes


class TransformerDecoderConfig(DecoderConfig):
    """A plain transformer decoder, what ML-Decoder is compared with: its layers, unchanged.

    Attributes:
        kind: tag of this head.
        num_classes: N, number of logits; one learned query each.
        num_layers: decoder layers, each with self-attention between the queries.
    """

    kind: Literal["transformer_decoder"] = "transformer_decoder"
    num_classes: int = Field(ge=1)
    num_layers: int = Field(default=1, ge=1)


class Query2LabelConfig(DecoderConfig):
    """Query2Label head (arXiv 2107.10834).

    Attributes:
        kind: tag of this head.
        num_classes: N, number of logits; one learned query each.
        grid: rows and columns of tokens; the positions are bound to it.
        num_encoder_layers: transformer layers over the tokens.
        self_attention: one entry a decoder layer: whether its queries attend to each other.
        input_projection: whether a linear layer brings tokens from C to D; without, C is D.
        pre_norm: norms stand before the attentions and not behind them.
    """

    kind: Literal["query2label"] = "query2label"
    num_classes: int = Field(ge=1)
    grid: tuple[int, int]
    num_encoder_layers: int = Field(default=1, ge=0)
    self_attention: tuple[bool, ...] = Field(default=(False, False), min_length=1)
    input_projection: bool = True
    pre_norm: bool = False

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        if not self.input_projection and self.encoder_width != self.decoder_width:
            raise ValueError(
                f"tokens of width {self.encoder_width} need a projection to {self.decoder_width}"
            )
        return self


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


HeadConfig = Annotated[
    MLDecoderConfig
    | ZeroShotMLDecoderConfig
    | TransformerDecoderConfig
    | Query2LabelConfig
    | GapConfig,
    Field(discriminator="kind"),
]


class NetworkConfig(_Config):
    """A whole network.

    Attributes:
        backbone: timm name, or one of ours (`backbone.py`).
        input: how photos are prepared.
        head: the head's own configuration.
        activation: what makes scores of logits: `sigmoid` where a photo may have several
            labels, `softmax` where it has exactly one.
    """

    backbone: str
    input: InputConfig
    head: HeadConfig
    activation: Activation = "sigmoid"

    @model_validator(mode="after")
    def _open_labels_do_not_compete(self) -> Self:
        if self.activation == "softmax" and isinstance(self.head, ZeroShotMLDecoderConfig):
            raise ValueError("a head for open labels has no softmax: its labels are not fixed")
        return self

    @property
    def num_classes(self) -> int | None:
        """N, number of logits; None where the head takes any labels."""
        head = self.head
        return None if isinstance(head, ZeroShotMLDecoderConfig) else head.num_classes
