"""The model card: what a bundle says of its model, its input and its labels.

In: `manifest.json` and `labels.json`, or an export's findings. Out: frozen records that refuse
what they do not know. Next: `bundle.py`, which stores them beside the graphs.
"""

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
"""Numbers that a graph is written in."""
RunPrecision = Literal[Precision, "bf16"]
"""Numbers that a graph is run in: those it is written in, or `bf16`: an fp32 graph whose products
take bfloat16."""
Device = Literal["cpu", "openvino", "cuda", "tensorrt"]
"""What runs the model; `openvino` is the CPU too, with OpenVINO's kernels."""
CPU_DEVICES: frozenset[Device] = frozenset({"cpu", "openvino"})
"""The devices that compute on the cores and in the memory of the service itself."""
ResizeMode = Literal["squash", "crop"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Activation = Literal["sigmoid", "softmax"]

# A name becomes a folder name and a URL part, so it keeps to a safe alphabet.
ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Record(BaseModel):
    """A frozen record that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def tell_first_error(error: ValidationError) -> str:
    """Returns the first thing that is wrong with a record, after its place where it has one."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


class InputContract(Record):
    """How an upright RGB photo becomes the encoder's uint8 [B, H, W, 3] input.

    Scaling to floats and mean/std are inside the encoder graph, so they are not here.

    Attributes:
        height: H, pixels.
        width: W, pixels.
        resize_mode: `squash` resizes to H x W ignoring the aspect ratio (the official
            ML-Decoder evaluation); `crop` resizes the shorter side to size / crop_pct,
            then takes the centre (timm's evaluation).
        crop_pct: share of the resized picture that the centre crop keeps, (0, 1];
            only read when `resize_mode` is `crop`.
        interpolation: Pillow resampling filter (antialiased except `nearest`).
    """

    height: int = Field(ge=1, le=4096)
    width: int = Field(ge=1, le=4096)
    resize_mode: ResizeMode
    crop_pct: float = Field(default=1.0, gt=0.0, le=1.0)
    interpolation: Interpolation


class TrainedHead(Record):
    """The head with a fixed list of labels.

    Attributes:
        kind: architecture, for example `ml_decoder` or `gap`.
        num_labels: N, the width of the logits.
        activation: `sigmoid` (multi-label) or `softmax` (single-label).
    """

    kind: str
    num_labels: int = Field(ge=1)
    activation: Activation


class EmbeddingSpace(Record):
    """Where label embeddings live: embeddings of two spaces must not be mixed.

    Attributes:
        encoder: name of the text encoder, for example `all-MiniLM-L6-v2`.
        width: E, the width of an embedding.
        template: how a label's name becomes the text that is encoded; `{}` is the name.
    """

    encoder: str = Field(min_length=1, max_length=200)
    width: int = Field(ge=1, le=65536)
    template: Annotated[str, StringConstraints(pattern=r"^[^{}]*\{\}[^{}]*$", max_length=200)]

    @property
    def fingerprint(self) -> str:
        """Hash of all three attributes, sha256 in hex."""
        text = json.dumps([self.encoder, self.width, self.template])
        return hashlib.sha256(text.encode()).hexdigest()


class OpenHead(Record):
    """The head that scores any label, given its text embedding.

    Scores are sigmoids of the logits. What depends on a label alone is computed once by the
    graph `label_encoder`: embeddings [L, E] -> label queries [L, K]; K is the graph's matter.

    Attributes:
        kind: architecture, for example `ml_decoder`.
        embedding_space: the embeddings that it takes.
        threshold: score (0..1) at and above which a label without a threshold of its own is
            predicted, chosen on labels that were not trained with every photo's truth; None
            where nobody measured it.
    """

    kind: str
    embedding_space: EmbeddingSpace
    threshold: float | None = Field(default=None, ge=0.0, le=1.0)


class Provenance(Record):
    """Where the weights came from.

    Attributes:
        backbone: timm name of the backbone.
        checkpoint_sha256: hash of the checkpoint file that was exported.
        training_data: free text: data set and number of images, or `unknown`.
        tools: package name -> version, of the tools that wrote the bundle.
    """

    backbone: str
    checkpoint_sha256: Sha256
    training_data: str
    tools: dict[str, str]


class Metric(Record):
    """One measured figure of one precision variant.

    Attributes:
        name: `mAP` (0..100, percent), for example.
        value: the figure, finite.
        precision: variant it was measured on.
        dataset: data set and split, for example `coco18/test`.
        images: number of images it was measured over.
    """

    name: str
    value: float = Field(allow_inf_nan=False)
    precision: Precision
    dataset: str
    images: int = Field(ge=1)


class Label(Record):
    """One trained label, in the order of the logits.

    Attributes:
        name: unique name, shown to users.
        description: optional longer text.
        threshold: calibrated score (0..1) at and above which the label is predicted,
            chosen for best F1 on validation; None where it was not calibrated.
        precision: at that threshold on validation, 0..1.
        recall: at that threshold on validation, 0..1.
        positives: number of validation images with this label.
    """

    name: str = Field(min_length=1, max_length=200)
    description: str | None = None
    threshold: float | None = Field(default=None, ge=0.0, le=1.0)
    precision: float | None = Field(default=None, ge=0.0, le=1.0)
    recall: float | None = Field(default=None, ge=0.0, le=1.0)
    positives: int | None = Field(default=None, ge=0)


class ModelCard(Record):
    """What a bundle says of itself, apart from its files.

    Attributes:
        name: model name; also the name of the bundle's folder.
        version: model version, free text without white space.
        license: SPDX identifier or free text.
        provenance: where the weights came from.
        input: how a photo becomes the encoder's input.
        trained_head: the head with trained labels; None where there is only an open one.
        open_head: the head for any label; None where there is only a trained one.
        default_precision: precision that the service picks on a device when asked for
            `auto`; a device that is absent here takes `fp32`.
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
