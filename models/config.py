"""Frozen descriptions of a network: backbone, head and preparation of photos."""

import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
ResizeMode = Literal["squash", "crop", "pad"]
Activation = Literal["sigmoid", "softmax"]
PrefixTokens = Literal["keep", "drop"]
Towers = Literal["clip", "siglip"]
# The method of a timm model without classifier and pooling that gives a head its features:
# `forward` adds the layers after them, a norm in ConvNeXt, a convolution in MobileNet.
Features = Literal["forward", "forward_features"]
Triple = tuple[FiniteFloat, FiniteFloat, FiniteFloat]
# Of a timm model: what JSON has, and no dictionary.
ModelArgument = bool | int | float | str | tuple[bool | int | float | str, ...]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Byte = Annotated[int, Field(ge=0, le=255)]
Colour = tuple[Byte, Byte, Byte]  # red, green, blue


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InputConfig(_Config):
    """How an upright RGB photo becomes the backbone's float input."""

    height: int = Field(ge=1, le=4096)
    width: int = Field(ge=1, le=4096)
    mean: Triple = (0.0, 0.0, 0.0)  # subtracted per channel, after pixels are scaled to 0..1
    # Divides each channel, after the mean.
    std: tuple[Positive, Positive, Positive] = (1.0, 1.0, 1.0)
    interpolation: Interpolation = "bilinear"  # antialiased Pillow filter for the resize
    # `squash` ignores the aspect ratio; `crop` resizes the shorter side to size / crop_pct and
    # takes the centre; `pad` puts the photo in the middle of a square, and resizes that.
    resize_mode: ResizeMode = "squash"
    crop_pct: float = Field(default=1.0, gt=0.0, le=1.0)
    pad_color: Colour = (255, 255, 255)
    # Of `pad`: side of the square, into which the photo is fitted first; None: its longer side.
    fit_size: int | None = Field(default=None, ge=1, le=4096)
    fit_interpolation: Interpolation = "bilinear"


def crop_share(size: int, shorter: int) -> float:
    """Returns the `crop_pct` by which a photo's shorter side becomes exactly `shorter` pixels."""
    share = size / shorter
    return share if int(size / share) == shorter else math.nextafter(share, 0)


class DecoderConfig(_Config):
    """Widths of an attention decoder over image tokens; each head below adds its own fields."""

    encoder_width: int = Field(ge=1)  # C
    decoder_width: int = Field(default=768, ge=1)  # D
    num_heads: int = Field(default=8, ge=1)  # divides D
    feedforward_width: int = Field(default=2048, ge=1)
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.decoder_width % self.num_heads:
            raise ValueError(f"{self.num_heads} heads do not divide width {self.decoder_width}")
        return self


class MLDecoderConfig(DecoderConfig):
    """ML-Decoder head (arXiv 2111.12933, section 3)."""

    kind: Literal["ml_decoder"] = "ml_decoder"
    num_classes: int = Field(ge=1)  # N
    num_groups: int | None = Field(default=None, ge=1)  # most label queries; None: one a class

    @property
    def group_size(self) -> int:
        """Classes of a query: ceil(N / groups)."""
        groups = min(self.num_groups or self.num_classes, self.num_classes)
        return math.ceil(self.num_classes / groups)

    @property
    def num_queries(self) -> int:
        """Q: ceil(N / group size), at most `num_groups`: 9,605 classes in 200 groups need 197."""
        return math.ceil(self.num_classes / self.group_size)


class ZeroShotMLDecoderConfig(DecoderConfig):
    """Zero-shot ML-Decoder (arXiv 2111.12933, section 3.4): label queries from text."""

    kind: Literal["zero_shot_ml_decoder"] = "zero_shot_ml_decoder"
    embedding_width: int = Field(ge=1)  # E
    embedding_encoder: str = "unknown"
    embedding_template: str = "{}"  # the text to embed, {} for the label's name
    num_prototypes: int = Field(default=0, ge=0)  # P of `name_votes.py`; the paper's head has 0

    @property
    def query_width(self) -> int:
        """K, width of a label query: hidden, projection and the prototypes' votes."""
        return 2 * self.decoder_width + self.num_prototypes


class CosineConfig(_Config):
    """CLIP's and SigLIP's cosine; tokens are in the space of the embeddings."""

    kind: Towers
    embedding_width: int = Field(ge=1)  # E
    embedding_encoder: str
    embedding_template: str

    @property
    def encoder_width(self) -> int:
        """C."""
        return self.embedding_width

    @property
    def query_width(self) -> int:
        """K."""
        return self.embedding_width


class Query2LabelConfig(DecoderConfig):
    """Query2Label head (arXiv 2107.10834)."""

    kind: Literal["query2label"] = "query2label"
    num_classes: int = Field(ge=1)
    grid: tuple[int, int]  # rows and columns of tokens; the positions are bound to it
    num_encoder_layers: int = Field(default=1, ge=0)
    # For each decoder layer, whether its queries attend to each other.
    self_attention: tuple[bool, ...] = Field(default=(False, False), min_length=1)
    input_projection: bool = True  # a linear layer maps tokens from C to D; without it C must be D
    pre_norm: bool = False  # norms come before the attentions instead of after them

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        if not self.input_projection and self.encoder_width != self.decoder_width:
            raise ValueError(
                f"tokens of width {self.encoder_width} need a projection to {self.decoder_width}"
            )
        return self


class RamConfig(DecoderConfig):
    """Tagging head of RAM (arXiv 2306.03514) and RAM++ (arXiv 2310.15200), for its tags and others.

    With `image_projection`, the head projects tokens and adds their mean as class token; without
    it, tokens come projected, the class token first.
    """

    kind: Literal["ram"] = "ram"
    num_classes: int = Field(ge=1)  # N, the file's own tags
    text_width: int = Field(default=512, ge=1)  # of a text embedding, and of a projected token
    # Most descriptions of a label, which RAM++ weighs; None for RAM.
    num_descriptions: int | None = Field(default=None, ge=1)
    num_heads: int = Field(default=4, ge=1)
    feedforward_width: int = Field(default=3072, ge=1)
    num_layers: int = Field(default=2, ge=1)
    image_projection: bool = True
    threshold: float = Field(default=0.68, ge=0.0, le=1.0)  # of tags without their own
    embedding_encoder: str = "CLIP ViT-B/16"
    embedding_template: str = "a photo of a {}."

    @property
    def embedding_width(self) -> int:
        """E, width of a label's embedding: its descriptions one after the other."""
        return self.text_width * (self.num_descriptions or 1)

    @property
    def query_width(self) -> int:
        """K, width of a label query: RAM++ weighs the descriptions by photo, so it takes them."""
        return self.embedding_width if self.num_descriptions else self.decoder_width


class GapConfig(_Config):
    """Global average pooling and a linear layer, the paper's baseline."""

    model_config = ConfigDict(extra="ignore")  # 1.0 and 1.1 wrote more fields, without effect
    kind: Literal["gap"] = "gap"
    num_classes: int = Field(ge=1)
    encoder_width: int = Field(ge=1)
    pooling: Literal["mean"] = "mean"  # version 1.1 could store others
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)


class TimmHeadConfig(_Config):
    """The own head of a timm model, the rest of which is the backbone."""

    kind: Literal["timm"] = "timm"
    num_classes: int = Field(ge=1)
    encoder_width: int = Field(ge=1)
    parts: tuple[str, ...]  # the model's modules with weights that are its head: `fc_norm`, `head`
    # Rows and columns of a map of features; None: the model gives tokens, class token and all.
    grid: tuple[int, int] | None = None


HeadConfig = Annotated[
    MLDecoderConfig
    | ZeroShotMLDecoderConfig
    | CosineConfig
    | Query2LabelConfig
    | RamConfig
    | GapConfig
    | TimmHeadConfig,
    Field(discriminator="kind"),
]

# The heads that score any labels; RAM's has trained labels too.
OpenHeadConfig = ZeroShotMLDecoderConfig | CosineConfig | RamConfig


class NetworkConfig(_Config):
    """A whole network."""

    backbone: str  # a name that `Backbone` knows; two towers have their own
    model_args: dict[str, ModelArgument] = Field(default_factory=dict)  # of timm's model beside it
    input: InputConfig
    head: HeadConfig
    activation: Activation = "sigmoid"  # softmax if a photo has exactly one label
    prefix_tokens: PrefixTokens = "drop"  # whether the head sees class and register tokens
    features: Features = "forward_features"
    norm_pooled: bool = False  # the backbone normalises after pooling: tokens are not normalised

    @model_validator(mode="after")
    def _open_labels_do_not_compete(self) -> Self:
        opens = isinstance(self.head, ZeroShotMLDecoderConfig | RamConfig)
        if self.activation == "softmax" and opens:
            raise ValueError("a head for open labels has no softmax: its labels are not fixed")
        return self

    @property
    def num_classes(self) -> int | None:
        """N, number of logits; None for a head for open labels."""
        count: int | None = getattr(self.head, "num_classes", None)
        return count
