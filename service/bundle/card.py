"""The model card of a bundle: its model, input and labels, as frozen records."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

Precision = Literal["fp32", "fp16", "int8"]
"""Number formats of stored graphs."""
RunPrecision = Literal[Precision, "bf16"]
"""Number formats of runs; `bf16` is an fp32 graph whose products take bfloat16."""
Device = Literal["cpu", "openvino", "cuda", "tensorrt"]
"""`openvino` is the CPU with OpenVINO's kernels."""
CPU_DEVICES: frozenset[Device] = frozenset({"cpu", "openvino"})
"""Devices that use the cores and the memory of the service."""
ResizeMode = Literal["squash", "crop"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Activation = Literal["sigmoid", "softmax"]

# A name becomes a folder name and a part of a URL.
ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Record(BaseModel):
    """A frozen model that rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def format_first_error(error: ValidationError) -> str:
    """Returns the first error of a record as `field.path: message`."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


class InputContract(Record):
    """How an upright RGB photo becomes the encoder's uint8 [B, H, W, 3] input.

    The encoder graph scales to floats, mean and std.

    Attributes:
        height: H, pixels.
        width: W, pixels.
        resize_mode: `squash` ignores the aspect ratio (ML-Decoder's evaluation); `crop` resizes
            the shorter side to size / crop_pct and takes the centre (timm's evaluation).
        crop_pct: (0, 1], for `crop` only.
        interpolation: Pillow's resampling filter (antialiased except `nearest`).
    """

    height: int = Field(ge=1, le=4096)
    width: int = Field(ge=1, le=4096)
    resize_mode: ResizeMode
    crop_pct: float = Field(default=1.0, gt=0.0, le=1.0)
    interpolation: Interpolation


class TrainedHead(Record):
    """The head with a fixed list of labels; `kind` is its architecture, such as `ml_decoder`."""

    kind: str
    num_labels: int = Field(ge=1)
    activation: Activation


class EmbeddingSpace(Record):
    """The space of label embeddings; embeddings of two spaces must not be mixed.

    Attributes:
        encoder: name of the text encoder, such as `all-MiniLM-L6-v2`.
        width: E.
        template: text to encode for a label; `{}` is its name.
    """

    encoder: str = Field(min_length=1, max_length=200)
    width: int = Field(ge=1, le=65536)
    template: Annotated[str, StringConstraints(pattern=r"^[^{}]*\{\}[^{}]*$", max_length=200)]

    @property
    def fingerprint(self) -> str:
        """Sha256 of all three attributes, in hex."""
        text = json.dumps([self.encoder, self.width, self.template])
        return hashlib.sha256(text.encode()).hexdigest()


class OpenHead(Record):
    """The head that scores any label, given its text embedding, by the sigmoid of the logit.

    Attributes:
        kind: architecture, such as `ml_decoder`.
        embedding_space: of the embeddings that it takes.
        threshold: 0..1, of labels without one of their own: a label is predicted at and above it.
            Measured on labels that were not trained; None if not measured.
    """

    kind: str
    embedding_space: EmbeddingSpace
    threshold: float | None = Field(default=None, ge=0.0, le=1.0)


class Provenance(Record):
    """Where the weights came from.

    Attributes:
        backbone: its name in timm.
        checkpoint_sha256: of the exported checkpoint file.
        training_data: data set and number of images, or `unknown`.
        tools: package -> version, of the tools that wrote the bundle.
    """

    backbone: str
    checkpoint_sha256: Sha256
    training_data: str
    tools: dict[str, str]


class Metric(Record):
    """One measured figure of one precision variant.

    Attributes:
        name: such as `mAP` (0..100, percent).
        value: finite.
        precision: measured variant.
        dataset: data set and split, such as `coco18/test`.
        images: number of images.
    """

    name: str
    value: float = Field(allow_inf_nan=False)
    precision: Precision
    dataset: str
    images: int = Field(ge=1)


class Label(Record):
    """One trained label.

    Attributes:
        name: unique.
        description: optional longer text.
        threshold: 0..1, of the best F1 on validation: the label is predicted at and above it; None
            if not calibrated.
        precision: 0..1, at the threshold on validation.
        recall: 0..1, at the threshold on validation.
        positives: number of validation images with the label.
    """

    name: str = Field(min_length=1, max_length=200)
    description: str | None = None
    threshold: float | None = Field(default=None, ge=0.0, le=1.0)
    precision: float | None = Field(default=None, ge=0.0, le=1.0)
    recall: float | None = Field(default=None, ge=0.0, le=1.0)
    positives: int | None = Field(default=None, ge=0)


class ModelCard(Record):
    """Everything about a model but its files; it has a trained head, an open head or both.

    Attributes:
        name: also the name of the bundle's folder.
        version: without white space.
        license: SPDX identifier or free text.
        provenance: of the weights.
        input: of the encoder.
        trained_head: for trained labels.
        open_head: for any label.
        default_precision: precision `auto` of each device; `fp32` if absent.
        metrics: measured figures of the variants.
    """

    name: ModelName
    version: Annotated[str, StringConstraints(pattern=r"^\S{1,64}$")]
    license: str
    provenance: Provenance
    input: InputContract
    trained_head: TrainedHead | None = None
    open_head: OpenHead | None = None
    default_precision: dict[Device, Precision] = Field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()

    @model_validator(mode="after")
    def _has_a_head(self) -> Self:
        if self.trained_head is None and self.open_head is None:
            raise ValueError("neither a trained nor an open head")
        return self
