"""The shape of every successful answer, as pydantic models.

Models of predictions only document what `prediction_json.py` writes.
"""

from __future__ import annotations

import operator
from bisect import bisect
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from service.bundle.card import Calibration
from service.http.responses.problems import Problem
from service.labels.examples import Lesson
from service.labels.label_set import LabelSet, Origin, Source

MAX_HIDDEN = 10
"""Most names of hidden labels in an answer: a set may have 50,000."""

_SEPARATION_LIMITS = (1, 3, 5)
_SEPARATIONS = ("not", "weakly", "fairly well", "clearly")


class Answer(BaseModel):
    """Base of answers, which may be read from attributes."""

    model_config = ConfigDict(from_attributes=True)


class NameAndVersion(Answer):
    """A model or label set."""

    name: str = Field(examples=["ml-decoder-lite0"])
    version: str = Field(examples=["1.0.0"])


class SetInAnswer(NameAndVersion):
    """A label set that answers."""

    num_hidden: int | None = Field(
        default=None,
        description="If the set is registered: how many of its labels a set before it answers, "
        "with that set's thresholds. Absent if none. To change this, name your set first.",
        examples=[None],
    )
    hidden: list[str] | None = Field(
        default=None, description=f"The first {MAX_HIDDEN} of these labels.", examples=[None]
    )


class ImageSize(Answer):
    """Size of the upright image, pixels."""

    width: int = Field(examples=[640])
    height: int = Field(examples=[480])


_Category = Annotated[
    str | None,
    Field(
        description="Category of a trained label, such as `character`. Absent if it has none.",
        examples=[None],
        exclude_if=operator.not_,
    ),
]


class ScoredLabelAnswer(Answer):
    """One label of an image."""

    label: str = Field(examples=["dog"])
    score: float = Field(
        ge=0, le=1, description="Rounded to six decimals, as `threshold`.", examples=[0.93]
    )
    threshold: float = Field(
        ge=0,
        le=1,
        description="Lowest score at which the label counts as present.",
        examples=[0.61],
    )
    source: Source = Field(description="How the model knows the label.")
    calibrated: bool = Field(
        description="Whether `threshold` is the label's own: chosen on validation data, or "
        "given with its label set."
    )
    category: _Category = None
    map: list[list[float]] | None = Field(
        default=None,
        description="With `explain`: where in the image the label was found, rows from the top, "
        "0 to 1. The largest value is 1; all are 0 if no part shows the label.",
        examples=[None],
    )
    overlay: str | None = Field(
        default=None,
        description="With `explain=overlay`: the map as a data URL of a PNG with the image's "
        "proportions, to lay over it.",
        examples=[None],
    )


EmbeddingAnswer: TypeAlias = list[float] | str
"""An embedding [D] as numbers, or as little-endian float32 in base64."""


class TimingsAnswer(Answer):
    """Times, milliseconds."""

    decode_ms: float = Field(
        description="Decoding and resizing, and the wait for a decoding thread.", examples=[4.1]
    )
    queue_ms: float = Field(description="Wait for a worker.", examples=[0.2])
    inference_ms: float = Field(
        description="The run of the image's batch, without decoding.", examples=[11.8]
    )
    total_ms: float = Field(
        description="From the start of the first stage to the answer.", examples=[16.3]
    )


class ImageAnswer(Answer):
    """The labels found in one image."""

    image: ImageSize
    labels: list[ScoredLabelAnswer] = Field(description="Best score first.")
    embedding: EmbeddingAnswer | None = Field(
        default=None, description="With `embedding`: of length 1.", examples=[None]
    )
    timings: TimingsAnswer


class ImageFailure(Answer):
    """The problem of one image of a batch; the others are not affected."""

    error: Problem


class _RequestAnswer(Answer):
    model: NameAndVersion
    label_set: NameAndVersion = Field(
        description="Source of the labels. Names and versions of several sets are joined by `+`, "
        "in the order of `label_sets`."
    )
    label_sets: list[SetInAnswer] = Field(
        description="Each set that the labels are from; candidate labels come first."
    )
    request_id: str = Field(description="As in the header `X-Request-ID`.")


class PredictAnswer(ImageAnswer, _RequestAnswer):
    """Answer of `/predict`."""


class BatchAnswer(_RequestAnswer):
    """Answer of `/predict/batch`."""

    results: list[ImageAnswer | ImageFailure] = Field(
        description="One entry for each image, in their order."
    )


class EmbeddedItem(Answer):
    """An embedding of length 1."""

    embedding: EmbeddingAnswer


class EmbedAnswer(Answer):
    """Answer of `/embed`."""

    model: NameAndVersion
    encoder: str = Field(
        description="Fingerprint: embeddings of another encoder cannot be compared."
    )
    width: int | None = Field(
        description="Values of an embedding. Null if no image can be used.", examples=[640]
    )
    images: list[EmbeddedItem | ImageFailure] = Field(description="In the order of the images.")
    texts: list[EmbeddedItem] = Field(description="In the order of the texts.")


class OpenAIEmbedding(EmbeddedItem):
    """One embedding of `/v1/embeddings`."""

    object: Literal["embedding"]
    index: int = Field(description="Of the input, from 0.")


class OpenAIUsage(Answer):
    """Tokens are not counted."""

    prompt_tokens: Literal[0]
    total_tokens: Literal[0]


class OpenAIEmbeddings(Answer):
    """Answer of `/v1/embeddings`."""

    object: Literal["list"]
    data: list[OpenAIEmbedding]
    model: str
    usage: OpenAIUsage


class LabelSetSummary(Answer):
    """A label set without its labels."""

    name: str = Field(examples=["pets"])
    version: str = Field(
        description="Changes with the content; a growing number if `origin` is `store`.",
        examples=["7"],
    )
    origin: Origin = Field(description="Source of the set.", examples=["store"])
    read_only: bool = Field(description="Whether it cannot be replaced or deleted.")
    num_labels: int = Field(examples=[2])
    category_counts: dict[str, int] | None = Field(
        default=None,
        description="The number of labels of each category. Absent without categories.",
        examples=[None],
        exclude_if=operator.not_,
    )
    num_learnt: int = Field(
        default=0,
        description="How many labels answer by examples too. Absent if none does.",
        examples=[0],
        exclude_if=operator.not_,
    )


class Separation(Answer):
    """How well the examples of a label are told apart from other photos."""

    value: float = Field(
        ge=0,
        le=8,
        description="Mean score of each example under the others, in standard deviations of other "
        "photos. 3 for a single one.",
        examples=[6.1],
    )
    meaning: str = Field(examples=["clearly told apart from other photos"])


class LabelExamples(Answer):
    """What a label has learnt from photos. The photos are not stored."""

    positive: int = Field(description="Different photos that show it.", examples=[5])
    negative: int = Field(description="Different photos that do not show it.", examples=[0])
    separation: Separation
    this_model: bool = Field(
        description="False if all are examples of another model: none is counted, and the label "
        "answers by its text."
    )


class RegisteredLabel(Answer):
    """One label of a set."""

    name: str = Field(examples=["red panda"])
    prompt: str | None = Field(description="Text encoded instead of the name.")
    threshold: float = Field(ge=0, le=1, examples=[0.4])
    calibrated: bool = Field(description="Whether `threshold` is the label's own.")
    own_embedding: bool = Field(
        description="Whether it came with an embedding instead of a text; embeddings are not shown."
    )
    category: _Category = None
    examples: LabelExamples | None = Field(
        default=None,
        description="Absent if the label has none.",
        examples=[None],
        exclude_if=operator.not_,
    )


class LabelSetAnswer(LabelSetSummary):
    """A label set with its labels."""

    calibration: Calibration | None = Field(
        description="Of the set's scores, from `labels calibrate`. Null: the open head's."
    )
    labels: list[RegisteredLabel]


class LabelSetsAnswer(Answer):
    """Answer of `GET /labels`."""

    label_sets: list[LabelSetSummary]


class HealthAnswer(Answer):
    """Answer of `/livez` and `/readyz`."""

    status: Literal["alive", "ready"]


def describe_separation(lesson: Lesson, value: float) -> Separation:
    """Returns the separation (0 to 8) of a label's examples with its meaning in words."""
    count = lesson.positive.count
    if count < 2:
        meaning = "unknown with one photo" if count else "unknown without positive photos"
    else:
        words = _SEPARATIONS[bisect(_SEPARATION_LIMITS, value)]
        meaning = f"{words} told apart from other photos"
    return Separation(value=value, meaning=meaning)


def _describe_examples(labels: LabelSet) -> dict[str, LabelExamples]:
    unknown = Separation(value=0, meaning="unknown: the examples are of another model")
    other = LabelExamples(positive=0, negative=0, separation=unknown, this_model=False)
    found = dict.fromkeys(labels.foreign, other)
    learnt = labels.learnt
    if learnt is not None:
        rows = zip(learnt.positions, learnt.lessons, learnt.separations.tolist(), strict=True)
        for place, lesson, value in rows:
            found[labels.names[place]] = LabelExamples(
                positive=lesson.positive.count,
                negative=lesson.negative.count,
                separation=describe_separation(lesson, value),
                this_model=True,
            )
    return found


def answer_label_set(labels: LabelSet) -> LabelSetAnswer:
    """Returns a set with its labels."""
    fields = tuple(RegisteredLabel.model_fields)
    columns = zip(
        labels.names,
        labels.prompts,
        labels.thresholds.tolist(),
        labels.calibrated.tolist(),
        labels.own_embeddings.tolist(),
        map(labels.categories.get, labels.names),
        map(_describe_examples(labels).get, labels.names),
        strict=True,
    )
    return LabelSetAnswer(
        **LabelSetSummary.model_validate(labels).model_dump(),
        calibration=labels.own_calibration,
        labels=[RegisteredLabel(**dict(zip(fields, row, strict=True))) for row in columns],
    )
