"""The model card and the labels of a bundle, as frozen records."""

import hashlib
import json
import unicodedata
from collections.abc import Collection
from operator import not_
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from service.errors import quote
from service.fields import ThresholdName, explain_error

Precision = Literal["fp32", "fp16", "int8"]
RunPrecision = Literal[Precision, "bf16"]
"""`bf16` runs an fp32 graph with products of bfloat16."""
Device = Literal["cpu", "openvino", "cuda", "tensorrt"]
"""`openvino` is the CPU with OpenVINO's kernels."""
CPU_DEVICES: frozenset[Device] = frozenset({"cpu", "openvino"})
ResizeMode = Literal["squash", "crop", "pad"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Activation = Literal["sigmoid", "softmax"]
PrefixTokens = Literal["keep", "drop"]
Triple = tuple[float, float, float]
Byte = Annotated[int, Field(ge=0, le=255)]
Colour = tuple[Byte, Byte, Byte]

# A name becomes a folder name and a part of a URL.
ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
FALLBACK_THRESHOLD = 0.5
"""Threshold if nothing else is known: on calibrated scores, more likely than not."""
# Older bundles have null.
_HeadThreshold = Annotated[
    float,
    Field(ge=0.0, le=1.0),
    BeforeValidator(lambda value: FALLBACK_THRESHOLD if value is None else value),
]
RANKED = (
    "ranked, not probabilities: calibrate them with `ml-decoder export --bundle {0} --open-photos "
    "FOLDER --out {0}`"
)
"""What to say of scores that only rank, with the bundle's place for `{0}`."""
_TOWERS = frozenset({"clip", "siglip"})
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Record(BaseModel):
    """A frozen model that rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def format_first_error(error: ValidationError, model: type[Record] | None = None) -> str:
    """Returns the first error as `field.path: message`; `model` is as in `explain_error`."""
    first = error.errors(include_url=False)[0]
    where = ".".join(quote(str(part))[1:-1] for part in first["loc"])  # names of a stranger
    message = explain_error(first, model)
    return f"{where}: {message}" if where else message


class InputContract(Record):
    """How an upright RGB photo becomes the encoder's uint8 [B, height, width, 3] input.

    `squash` ignores the aspect ratio (ML-Decoder's evaluation); `crop` resizes the shorter side to
    size / crop_pct and takes the centre (timm's evaluation); `pad` puts the photo in the middle of
    a square of its longer side and resizes that. `interpolation` is Pillow's filter. The encoder
    subtracts `mean` from pixels in 0..1 and divides by `std`, per channel. Bundles of schema
    versions 1 and 2 have neither.
    """

    height: int = Field(ge=1, le=4096)
    width: int = Field(ge=1, le=4096)
    resize_mode: ResizeMode
    crop_pct: float = Field(default=1.0, gt=0.0, le=1.0)
    interpolation: Interpolation
    mean: Triple | None = None
    std: Triple | None = None
    pad_color: Colour = Field(
        default=(255, 255, 255),
        exclude_if=lambda color: color == (255, 255, 255),
        description="Of `pad`: red, green and blue, 0 to 255. White is left out.",
    )
    fit_size: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        exclude_if=lambda size: size is None,
        description="Of `pad`: the photo is first fitted into a square of this side, pixels.",
    )
    fit_interpolation: Interpolation = Field(
        default="bilinear",
        exclude_if=lambda name: name == "bilinear",
        description="Pillow's filter of the first fit. `bilinear` is left out.",
    )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a photo's pixels: (height, width, 3)."""
        return self.height, self.width, 3

    def describe(self) -> str:
        """Returns the preparation in words, such as `squashed, bilinear to 448 x 448`."""
        color = f"#{bytes(self.pad_color).hex()}".replace("#ffffff", "white")
        steps = {
            "squash": "squashed",
            "crop": f"cropped to the centre ({self.crop_pct:.3g} of the shorter side)",
            "pad": f"padded to a {color} square",
        }
        text = f"{steps[self.resize_mode]}, {self.interpolation} to {self.width} x {self.height}"
        if self.fit_size is not None:
            text = f"{self.fit_interpolation} into {self.fit_size} x {self.fit_size}, {text}"
        for name, triple in (("mean", self.mean), ("std", self.std)):
            if triple is not None:
                text += f", {name} {' '.join(f'{value:.4g}' for value in triple)}"
        return text


class MeasuredThreshold(Record):
    """A threshold, with precision and recall on the photos that it was chosen on."""

    threshold: float = Field(ge=0.0, le=1.0)
    precision: float = Field(ge=0.0, le=1.0)
    recall: float = Field(ge=0.0, le=1.0)


ByPurpose = Annotated[
    dict[ThresholdName, MeasuredThreshold],
    Field(
        description="Thresholds by the words of the parameter `threshold`. Those of a head are "
        "for labels without their own; its precision and recall count all labels. Absent if they "
        "were not measured.",
        exclude_if=not_,
    ),
]


class Calibration(Record):
    """Turns a logit into a probability: the score is sigmoid(scale * logit + shift)."""

    scale: float = Field(gt=0.0, allow_inf_nan=False)
    shift: float = Field(allow_inf_nan=False)


class ReliabilityBin(Record):
    """The scores in one of ten equal bins of 0..1, and the share of them whose label is present."""

    scores: int = Field(ge=0, description="Pairs of a photo and a label.")
    mean_score: float = Field(ge=0.0, le=1.0, description="0 in an empty bin.")
    share_right: float = Field(
        ge=0.0, le=1.0, description="Share of the pairs whose photo shows the label."
    )


class HeadCalibration(Calibration):
    """A head's calibration and its expected calibration errors (0..1) without and with it.

    Errors and bins were measured by cross-validation: each photo with a fit to other photos. Labels
    may have their own calibration instead, which the errors and bins include.
    """

    dataset: str = Field(description="And split, such as `coco18/val`.")
    images: int = Field(ge=1, description="Photos that it was fitted to.")
    labels: int = Field(ge=1, description="Labels of these photos.")
    error_before: float = Field(ge=0.0, le=1.0, description="Without the calibration.")
    error_after: float = Field(ge=0.0, le=1.0, description="With the calibration.")
    bins: tuple[ReliabilityBin, ...]


class TrainedHead(Record):
    """The head of the trained labels; without `calibration`, scores are activations of logits."""

    kind: str
    num_labels: int = Field(ge=1)
    activation: Activation
    threshold: _HeadThreshold = FALLBACK_THRESHOLD
    by_purpose: ByPurpose = {}
    calibration: HeadCalibration | None = None


def write_prompt(template: str, name: str) -> str:
    """Returns the text to encode; text encoders know `wooden table`, not `wooden_table`."""
    return template.replace("{}", name.replace("_", " "))


def fold_name(name: str) -> str:
    """Returns `traffic light` for `Traffic_Light`, so that spellings of one label compare equal."""
    return unicodedata.normalize("NFC", name).strip().replace("_", " ").casefold()


class EmbeddingSpace(Record):
    """The space of label embeddings of width E; embeddings of two spaces must not be mixed.

    `template` is the text to encode for a label; `{}` is its name, see `write_prompt`. A label's
    embedding concatenates those of up to `descriptions` texts; zeros fill the rest.
    """

    encoder: str = Field(min_length=1, max_length=200)
    width: int = Field(ge=1, le=65536)
    template: Annotated[str, StringConstraints(pattern=r"^[^{}]*\{\}[^{}]*$", max_length=200)]
    descriptions: int = Field(default=1, ge=1)  # divides E

    @model_validator(mode="after")
    def _descriptions_divide_width(self) -> Self:
        if self.width % self.descriptions:
            raise ValueError(f"descriptions must divide width {self.width}: {self.descriptions}")
        return self

    @property
    def fingerprint(self) -> str:
        """Sha256 in hex."""
        text = json.dumps([self.encoder, self.width, self.template])
        return hashlib.sha256(text.encode()).hexdigest()


class Screen(Record):
    """Estimates the open head's logits, so that it scores only labels that may be in an answer.

    The recalls were measured on photos and names that the screen was not fitted to.
    """

    dataset: str = Field(description="And split, such as `coco80/test`.")
    images: int = Field(ge=1, description="Photos of the measurement.")
    names: int = Field(ge=1, description="Labels of the measurement.")
    scored: float = Field(gt=0.0, description="Mean number of labels scored for the 20 best.")
    best_found: float = Field(ge=0.0, le=1.0, description="Recall of the 20 best labels.")
    above_found: float = Field(
        ge=0.0, le=1.0, description="Recall of labels at or above their threshold."
    )


class OpenHead(Record):
    """The head that scores any label, given its text embedding.

    A softmax is over the labels of a set; calibrated scores are always a sigmoid. `threshold` is
    for labels without one of their own. It and `calibration` are measured on labels that were not
    trained; `trained_names` is the calibration for names of trained labels.
    """

    kind: str
    activation: Activation = "sigmoid"
    embedding_space: EmbeddingSpace
    threshold: _HeadThreshold = FALLBACK_THRESHOLD
    by_purpose: ByPurpose = {}
    calibration: HeadCalibration | None = None
    trained_names: HeadCalibration | None = None
    screen: Screen | None = None

    @property
    def ranked(self) -> bool:
        """Whether scores only rank labels: a cosine for which no photos gave a scale or threshold.

        Heads that were trained on labels know a threshold from their training: 0.5.
        """
        fallback = self.threshold == FALLBACK_THRESHOLD
        return self.kind in _TOWERS and self.calibration is None and fallback

    def find_calibration(self, name: str, trained_names: Collection[str]) -> Calibration | None:
        """Returns the calibration of a label; `trained_names` are as `fold_name` returns them."""
        if self.trained_names is not None and fold_name(name) in trained_names:
            return self.trained_names
        return self.calibration


class BackgroundPhotos(Record):
    """The photos that the background for labels from photos was measured on."""

    dataset: str = Field(description="And split, or the folder's name.")
    images: int = Field(ge=1)


class Provenance(Record):
    """Where the weights came from."""

    backbone: str = Field(description="timm's name.")
    prefix_tokens: PrefixTokens | None = Field(
        default=None,
        description="Whether the heads see the backbone's class and register tokens. Null: it has "
        "none.",
    )
    checkpoint_sha256: Sha256
    training_data: str = Field(description="Data set and number of images, or `unknown`.")
    tools: dict[str, str] = Field(description="Versions of the packages that wrote the bundle.")
    # Not written without content, as in other records: older services read the bundle then.
    revision: str | None = Field(default=None, exclude_if=not_, description="Of a hub's.")
    files: dict[str, Sha256] = Field(
        default={}, exclude_if=not_, description="Files that it was made from, hashed."
    )


class Metric(Record):
    """One measured figure of one precision variant."""

    name: str = Field(description="Such as `mAP`, in percent.")
    value: float = Field(allow_inf_nan=False)
    precision: Precision
    dataset: str = Field(description="And split, such as `coco18/test`.")
    images: int = Field(ge=1)


class Label(Record):
    """One trained label, predicted at and above its threshold, chosen on validation images.

    `precision` and `recall` are at the threshold; `positives` counts validation images.
    `by_purpose` and `calibration` replace the head's.
    """

    name: str = Field(min_length=1, max_length=200)
    category: str | None = Field(default=None, min_length=1, max_length=200, exclude_if=not_)
    description: str | None = None
    threshold: float | None = Field(default=None, ge=0.0, le=1.0)
    precision: float | None = Field(default=None, ge=0.0, le=1.0)
    recall: float | None = Field(default=None, ge=0.0, le=1.0)
    positives: int | None = Field(default=None, ge=0)
    by_purpose: ByPurpose = {}
    calibration: Calibration | None = None


class ModelCard(Record):
    """Everything about a model but its files; it has a trained head, an open head or both."""

    name: ModelName  # of the bundle's folder too
    version: Annotated[str, StringConstraints(pattern=r"^\S{1,64}$")]
    license: str  # SPDX identifier or free text
    provenance: Provenance
    input: InputContract
    trained_head: TrainedHead | None = None
    open_head: OpenHead | None = None
    background: BackgroundPhotos | None = Field(default=None, exclude_if=not_)
    default_precision: dict[Device, Precision] = Field(default_factory=dict)  # `auto`
    metrics: tuple[Metric, ...] = ()

    @property
    def has_two_towers(self) -> bool:
        """Whether the first token is the photo's embedding in the space of the texts."""
        return self.open_head is not None and self.open_head.kind in _TOWERS

    @model_validator(mode="after")
    def _has_a_head(self) -> Self:
        if self.trained_head is None and self.open_head is None:
            raise ValueError("neither a trained nor an open head")
        return self
