"""The shape of every successful answer, as pydantic models.

Models of predictions only document what `routes/predict.py` writes.
"""

import operator
from bisect import bisect
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.bundle.card import (
    Activation,
    BackgroundPhotos,
    ByPurpose,
    Calibration,
    Device,
    HeadCalibration,
    InputContract,
    Label,
    Metric,
    Provenance,
    RunPrecision,
    Screen,
)
from service.http.responses.problems import Problem
from service.labels.label_set import LabelSet, LearntLabels, Origin, Source
from service.pipeline.pipeline import Pipeline

MAX_HIDDEN = 10
"""Most names of hidden labels in an answer: a set may have 50,000."""


class _Answer(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class NameAndVersion(_Answer):
    """A model or label set."""

    name: str = Field(examples=["ml-decoder-lite0"])
    version: str = Field(examples=["1.0.0"])


_Ranked = Annotated[
    bool,
    Field(
        description="True: the scores are not calibrated. They are ranked, not probabilities, and "
        "without `top_k` and `threshold` the 5 best labels answer. Absent if false.",
        exclude_if=operator.not_,
    ),
]


class SetInAnswer(NameAndVersion):
    """A label set that answers."""

    ranked: _Ranked = False
    num_hidden: int | None = Field(
        default=None,
        description="If the set is registered: how many of its labels a set before it answers, "
        "with that set's thresholds. Absent if none. To change this, name your set first.",
        examples=[None],
    )
    hidden: list[str] | None = Field(
        default=None, description=f"The first {MAX_HIDDEN} of these labels.", examples=[None]
    )


class ImageSize(_Answer):
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


class ScoredLabelAnswer(_Answer):
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
    found: bool = Field(
        description="Whether the label would answer the same request without `top_k` and "
        "`min_labels`: without `threshold`, of a set with `ranked` the 5 best, of ratings the best."
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


class TimingsAnswer(_Answer):
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


class ImageAnswer(_Answer):
    """The labels found in one image."""

    image: ImageSize
    labels: list[ScoredLabelAnswer] = Field(description="Best score first.")
    embedding: list[float] | str | None = Field(default=None, examples=[None])
    timings: TimingsAnswer


class ImageFailure(_Answer):
    """The problem of one image of a batch; the others are not affected."""

    error: Problem


class _RequestAnswer(_Answer):
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


class LabelSetSummary(_Answer):
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
        default=0, description="Labels with examples; absent if 0.", exclude_if=operator.not_
    )
    ranked: _Ranked = False


class Separation(_Answer):
    """Distance of a label's examples from other photos, in the deviations of these."""

    value: float = Field(ge=0, le=8, examples=[6.1])
    meaning: str = Field(examples=["clearly told apart from other photos"])


class LabelExamples(_Answer):
    """The different photos, with and without it, that a label has learnt from."""

    positive: int = Field(examples=[5])
    negative: int = Field(examples=[1])
    separation: Separation
    this_model: bool = Field(description="False: all are of another model, and none counts.")


class RegisteredLabel(_Answer):
    """One label of a set."""

    name: str = Field(examples=["red panda"])
    prompt: str | None = Field(description="Text encoded instead of the name.")
    threshold: float = Field(ge=0, le=1, examples=[0.4])
    calibrated: bool = Field(description="Whether `threshold` is the label's own.")
    own_embedding: bool = Field(
        description="Whether it came with an embedding instead of a text; embeddings are not shown."
    )
    category: _Category = None
    examples: LabelExamples | None = Field(default=None, examples=[None], exclude_if=operator.not_)


class LabelSetAnswer(LabelSetSummary):
    """A label set with its labels."""

    calibration: Calibration | None = Field(
        description="Of the set's scores, from `labels calibrate`. Null: the open head's."
    )
    labels: list[RegisteredLabel]


class LabelSetsAnswer(_Answer):
    """Answer of `GET /labels`."""

    label_sets: list[LabelSetSummary]


class HealthAnswer(_Answer):
    """Answer of `/livez` and `/readyz`."""

    status: Literal["alive", "ready"]


class RuntimeAnswer(_Answer):
    """Device and precision of the model, after `auto` settings are resolved."""

    device: Device
    provider: str = Field(
        description="ONNX Runtime execution provider.", examples=["CPUExecutionProvider"]
    )
    precision: RunPrecision


class HeadAnswer(_Answer):
    """The head with the trained labels."""

    kind: str = Field(description="Architecture of the head.", examples=["ml_decoder"])
    activation: Activation
    maps: bool = Field(description="Whether `explain` works for the trained labels.")
    threshold: float = Field(description="Threshold of labels without their own.", examples=[0.5])
    by_purpose: ByPurpose = {}
    calibration: HeadCalibration | None = Field(
        description="How logits become probabilities. Null: scores are the activation of the "
        "checkpoint's logits, which are not probabilities."
    )


class EmbeddingSpaceAnswer(_Answer):
    """The embeddings that fit the open head."""

    encoder: str = Field(
        description="Name of the model that makes embeddings.", examples=["all-MiniLM-L6-v2"]
    )
    width: int = Field(description="Values of an embedding.", examples=[384])
    template: str = Field(
        description="Text to encode; {} is the label's name.", examples=["a photo of a {}"]
    )
    descriptions: int = Field(
        description="Most texts of a label, whose embeddings follow each other.", examples=[1]
    )
    fingerprint: str = Field(
        description="Identifies the space; embeddings of another space do not fit."
    )


class OpenHeadAnswer(_Answer):
    """The head that scores any label."""

    kind: str = Field(description="Architecture of the head.", examples=["ml_decoder"])
    activation: Activation = Field(
        description="A softmax is over the labels of a set. Sets with their own calibration have a "
        "sigmoid."
    )
    embedding_space: EmbeddingSpaceAnswer
    threshold: float = Field(description="Threshold of labels without their own.", examples=[0.5])
    by_purpose: ByPurpose = {}
    calibration: HeadCalibration | None = Field(
        description="As that of `head`, measured on labels that were not trained."
    )
    trained_names: HeadCalibration | None = Field(
        description="Calibration for open labels that have the name of a trained label."
    )
    encodes_text: bool = Field(
        description="Whether the bundle has a text encoder, so that a name is enough."
    )
    maps: bool = Field(description="Whether `explain` works for open labels.")
    ranked: _Ranked = False
    screen: Screen | None = Field(description="Null if the bundle has no screen, or it is off.")


class InfoAnswer(_Answer):
    """Answer of `/info`: the bundle's model card."""

    model: NameAndVersion
    license: str = Field(
        description="Of the weights: an SPDX identifier or free text.", examples=["Apache-2.0"]
    )
    provenance: Provenance
    input: InputContract
    head: HeadAnswer | None = Field(description="Null if there are no trained labels.")
    open_head: OpenHeadAnswer | None = Field(description="Null if labels cannot be added.")
    labels: list[Label] = Field(description="The trained labels, in the order of the logits.")
    background: BackgroundPhotos | None = Field(description="Null if labels learn no photos.")
    metrics: list[Metric]
    runtime: RuntimeAnswer


def describe_examples(learnt: LearntLabels, row: int) -> LabelExamples:
    """Returns what the label in a row of `learnt` has learnt."""
    lesson, value = learnt.lessons[row], float(learnt.separations[row])
    counts = {"positive": lesson.positive.count, "negative": lesson.negative.count}
    if lesson.positive.count < 2:
        meaning = f"unknown with {'one photo' if lesson.positive.count else 'negative photos only'}"
    else:
        how = ("not", "weakly", "fairly well", "clearly")[bisect((1, 3, 5), value)]
        meaning = f"{how} told apart from other photos"
    separation = Separation(value=value, meaning=meaning)
    return LabelExamples(**counts, separation=separation, this_model=True)


def answer_label_set(labels: LabelSet) -> LabelSetAnswer:
    """Returns a set with its labels."""
    fields = tuple(RegisteredLabel.model_fields)
    unknown = Separation(value=0, meaning="unknown: the examples are of another model")
    other = LabelExamples(positive=0, negative=0, separation=unknown, this_model=False)
    examples = dict.fromkeys(labels.foreign, other)
    if labels.learnt is not None:
        for row, place in enumerate(labels.learnt.positions):
            examples[labels.names[place]] = describe_examples(labels.learnt, row)
    columns = zip(
        labels.names,
        labels.prompts,
        labels.thresholds.tolist(),
        labels.calibrated.tolist(),
        labels.own_embeddings.tolist(),
        map(labels.categories.get, labels.names),
        map(examples.get, labels.names),
        strict=True,
    )
    return LabelSetAnswer(
        **LabelSetSummary.model_validate(labels).model_dump(),
        calibration=labels.own_calibration,
        labels=[RegisteredLabel(**dict(zip(fields, row, strict=True))) for row in columns],
    )


def answer_info(pipeline: Pipeline) -> InfoAnswer:
    """Returns the model card of the pipeline's bundle."""
    card, encoders = pipeline.bundle.card, pipeline.catalogue.encoders
    head, open_head = None, None
    if card.trained_head is not None:
        head = HeadAnswer(**dict(card.trained_head), maps=pipeline.explainer.has_trained)
    if encoders is not None:
        fields = dict(encoders.head)
        fields["embedding_space"] = EmbeddingSpaceAnswer.model_validate(fields["embedding_space"])
        if not pipeline.settings.screen:
            fields["screen"] = None
        open_head = OpenHeadAnswer(
            **fields,
            encodes_text=encoders.encodes_text,
            maps=pipeline.explainer.has_open,
            ranked=encoders.head.ranked,
        )
    return InfoAnswer(
        model=NameAndVersion.model_validate(card),
        license=card.license,
        provenance=card.provenance,
        input=card.input,
        head=head,
        open_head=open_head,
        labels=list(pipeline.bundle.labels),
        background=card.background,
        metrics=list(card.metrics),
        runtime=RuntimeAnswer.model_validate(pipeline.engine),
    )
