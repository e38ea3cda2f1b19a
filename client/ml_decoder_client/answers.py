"""Answers: what the service says, as objects.

In: JSON. Out: frozen pydantic models; what a newer service adds is ignored. The full description
of every field is the service's own, in `/docs` and `docs/api.md`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


class NameAndVersion(_Answer):
    """What made an answer, exactly."""

    name: str
    version: str


class ImageSize(_Answer):
    """Size of an image after its EXIF orientation was applied, pixels."""

    width: int
    height: int


class ScoredLabel(_Answer):
    """One label of an image.

    Attributes:
        label: its name.
        score: 0..1.
        threshold: the score from which the label counts as present.
        source: `trained` or `zero_shot`.
        calibrated: whether the threshold is the label's own.
        map: where the model looked, [rows][columns] of 0..1 over the image; None unless asked for
            with `explain`.
        overlay: the map as a data URL of a PNG; None unless asked for with `explain="overlay"`.
    """

    label: str
    score: float
    threshold: float
    source: Literal["trained", "zero_shot"]
    calibrated: bool
    map: list[list[float]] | None = None
    overlay: str | None = None


class Timings(_Answer):
    """Where the time went, milliseconds."""

    decode_ms: float
    queue_ms: float
    inference_ms: float
    total_ms: float


class Answer(_Answer):
    """The labels of one image, best score first, and what they are from."""

    model: NameAndVersion
    label_set: NameAndVersion
    label_sets: list[NameAndVersion]
    image: ImageSize
    labels: list[ScoredLabel]
    timings: Timings
    request_id: str


class NewLabel(BaseModel):
    """A label to register; a bare name does where nothing but the name is to be said.

    Attributes:
        name: what answers call it.
        prompt: text to encode instead of the name.
        embedding: [E] numbers to use instead of any text.
        threshold: 0..1; None takes the open head's.
        calibrated: as a `RegisteredLabel` has it; False drops the threshold.
        own_embedding: as a `RegisteredLabel` has it; True demands the embedding.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    prompt: str | None = None
    embedding: list[float] | None = None
    threshold: float | None = None
    calibrated: bool | None = None
    own_embedding: bool | None = None


class RegisteredLabel(_Answer):
    """One label of a set.

    Attributes:
        name: what answers call it.
        prompt: text that was encoded instead of the name.
        threshold: the score from which the label counts as present.
        calibrated: whether the threshold is the label's own.
        own_embedding: whether it came with an embedding, which is not told, and not with a text.
    """

    name: str
    prompt: str | None
    threshold: float
    calibrated: bool
    own_embedding: bool = False  # a service of before does not say


class LabelSetSummary(_Answer):
    """A label set without its labels."""

    name: str
    version: str
    origin: str
    read_only: bool
    num_labels: int


class LabelSetList(_Answer):
    """Every label set."""

    label_sets: list[LabelSetSummary]


class LabelSet(LabelSetSummary):
    """A label set with its labels; `version` is what `if_version` takes."""

    labels: list[RegisteredLabel]


class Info(_Answer):
    """The model card; parts that differ from model to model are plain JSON values."""

    model: NameAndVersion
    license: str
    provenance: dict[str, Any]
    input: dict[str, Any]
    head: dict[str, Any] | None
    open_head: dict[str, Any] | None
    labels: list[dict[str, Any]]
    metrics: list[dict[str, Any]]
    runtime: dict[str, Any]
