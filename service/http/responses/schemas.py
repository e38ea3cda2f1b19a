"""The shape of successful answers; those of predictions only document `routes/predict.py`."""

from operator import not_
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.bundle import card
from service.http.responses.problems import Problem
from service.labels.label_set import Origin
from service.labels.sources.fit import FitCounts
from service.pipeline.pipeline import Pipeline
from service.pipeline.prediction import Timings

MAX_HIDDEN = 10
"""Most names of hidden labels in an answer: a set may have 50,000."""


class _Answer(BaseModel):
    model_config = ConfigDict(from_attributes=True)


Share = Annotated[float, Field(ge=0, le=1)]


class NameAndVersion(_Answer):
    """A model or label set."""

    name: str = Field(examples=["ml-decoder-lite0"])
    version: str = Field(examples=["1.0.0"])


_Ranked = Annotated[bool, Field(description="Scores only rank. Absent if false.", exclude_if=not_)]


class SetInAnswer(NameAndVersion):
    """A label set that answers."""

    ranked: _Ranked = False
    num_hidden: int | None = Field(
        None,
        description="Labels that an earlier set answers instead. To change this, name your set "
        "first.",
    )
    hidden: list[str] | None = Field(None, description=f"The first {MAX_HIDDEN} of these.")


class ImageSize(_Answer):
    """Size of the upright image, pixels."""

    width: int
    height: int


_Category = Annotated[
    str | None,
    Field(description="Of a trained label; absent if it has none.", exclude_if=not_),
]


class ScoredLabelAnswer(_Answer):
    """One label of an image."""

    label: str = Field(examples=["dog"])
    translation: str | None = Field(None, description="With `lang`; absent if there is none.")
    score: Share = Field(description="Rounded to six decimals, as `threshold`.", examples=[0.93])
    threshold: Share = Field(description="Lowest score of a present label.", examples=[0.61])
    found: bool = Field(description="Whether it would answer without `top_k` and `min_labels`.")
    source: Literal["trained", "zero_shot", "fit", "examples"] = Field(
        description="How the model knows the label: what it learnt last, or its set's way."
    )
    calibrated: bool = Field(description="Whether `threshold` is the label's own.")
    parents: list[str] | None = Field(
        None, description="With `parents`, nearest first; absent if it has none."
    )
    parent_translations: list[str] | None = Field(None, description="With `lang`, of `parents`.")
    category: _Category = None
    map: list[list[float]] | None = Field(
        None, description="With `explain`: rows from the top, 0 to 1; all 0 if it is nowhere."
    )
    overlay: str | None = Field(None, description="The map as a data URL of a PNG.")


class ImageAnswer(_Answer):
    """The labels found in one image."""

    image: ImageSize
    labels: list[ScoredLabelAnswer] = Field(description="Best score first.")
    embedding: list[float] | str | None = None
    timings: Timings


class ImageFailure(_Answer):
    """The problem of one image of a batch; the others are not affected."""

    error: Problem


class _RequestAnswer(_Answer):
    model: NameAndVersion
    label_set: NameAndVersion = Field(description="Those of all `label_sets`, joined by `+`.")
    label_sets: list[SetInAnswer] = Field(description="Candidate labels come first.")
    resolved: dict[str, str] | None = Field(
        None,
        description="Words of the request that are no names -> the labels or parents that they "
        "mean. Candidates keep the word as their `label`.",
    )
    request_id: str = Field(description="As in the header `X-Request-ID`.")


class PredictAnswer(ImageAnswer, _RequestAnswer):
    """Answer of `/predict`."""


class BatchAnswer(_RequestAnswer):
    """Answer of `/predict/batch`."""

    results: list[ImageAnswer | ImageFailure] = Field(description="In the order of the images.")


class LabelSetSummary(_Answer):
    """A label set without its labels."""

    name: str = Field(examples=["pets"])
    version: str = Field(description="Changes with the content; grows if `origin` is `store`.")
    origin: Origin = Field(description="Source of the set.", examples=["store"])
    read_only: bool = Field(description="Whether it cannot be replaced or deleted.")
    num_labels: int
    category_counts: dict[str, int] | None = Field(None, exclude_if=not_)
    languages: list[str] = Field([], description="Of translations.", exclude_if=not_)
    num_learnt: int = Field(0, description="Labels that learnt from photos.", exclude_if=not_)
    ranked: _Ranked = False


class Separation(_Answer):
    """Distance of a label's examples from other photos, in the deviations of these."""

    value: float = Field(ge=0, le=8, examples=[6.1])
    meaning: str = Field(examples=["clearly told apart on these photos"])


class LabelExamples(_Answer):
    """The different photos, with and without it, that a label has learnt from."""

    positive: int
    negative: int
    separation: Separation
    this_model: bool = Field(description="False: all are of another model, and none counts.")


class LabelFit(FitCounts):
    """What a label has learnt from an archive's tags.

    The shares, 0 to 1, are of photos that it had not learnt from.
    """

    threshold: Share = Field(description="If the label has none of its own.")
    precision: Share | None = Field(description="At the threshold; null with too few photos.")
    recall: Share | None
    precise: card.MeasuredThreshold | None = Field(
        description="Threshold for `threshold=precise`; null if 0.9 was not reached."
    )
    this_model: bool = True


class RegisteredLabel(_Answer):
    """One label of a set."""

    name: str = Field(examples=["red panda"])
    prompt: str | None = Field(description="Text encoded instead of the name.")
    threshold: Share
    calibrated: bool = Field(description="Whether `threshold` is the label's own.")
    own_embedding: bool = Field(description="Whether it came with an embedding, not a text.")
    aliases: list[str] = Field([], exclude_if=not_)
    parents: list[str] = Field([], description="Nearest first.", exclude_if=not_)
    translations: dict[str, str] = Field({}, exclude_if=not_)
    category: _Category = None
    examples: LabelExamples | None = Field(default=None, exclude_if=not_)
    fit: LabelFit | None = Field(default=None, exclude_if=not_)


class LabelSetAnswer(LabelSetSummary):
    """A label set with its labels."""

    calibration: card.Calibration | None = Field(description="Null: the open head's.")
    labels: list[RegisteredLabel]


class LabelSetsAnswer(_Answer):
    """Answer of `GET /labels`."""

    label_sets: list[LabelSetSummary]


class PhotoScore(_Answer):
    """The score of the label on one photo."""

    score: Share = Field(examples=[0.93])


class OperatingPointAnswer(_Answer):
    """Precision and recall of a threshold on the photos."""

    threshold: Share = Field(examples=[0.61])
    precision: Share | None = Field(description="Null if no photo reaches it.")
    recall: Share = Field(examples=[0.75])


class CalibrationAnswer(_Answer):
    """Answer of `/labels/{name}/calibrate`."""

    label_set: NameAndVersion
    label: str = Field(examples=["red panda"])
    current: OperatingPointAnswer | None = Field(description="At the label's present threshold.")
    best: OperatingPointAnswer | None = Field(
        description="At the one of best F1, or the lowest that reaches `precision_target`."
    )
    positive: list[PhotoScore | ImageFailure] = Field(description="In the order of the photos.")
    negative: list[PhotoScore | ImageFailure] = Field(description="In the order of the photos.")


class ExampleCounts(_Answer):
    """The different photos that a label has learnt from, and those of this request."""

    positive: int
    negative: int
    added: int
    repeated: int = Field(description="The same photo as another, or nearly the same.")


class LearntAnswer(_Answer):
    """Answer of `POST /labels/{name}/examples`: the label now, and how the photos score now."""

    label_set: NameAndVersion
    label: str = Field(examples=["our mug"])
    examples: ExampleCounts
    separation: Separation
    threshold: float
    calibrated: bool = Field(description="Whether `threshold` is the label's own.")
    positive: list[PhotoScore]
    negative: list[PhotoScore]
    advice: str | None = Field(description="Which photos a threshold needs.", examples=[None])


class HealthAnswer(_Answer):
    """Answer of `/livez` and `/readyz`."""

    status: Literal["alive", "ready"]


class RuntimeAnswer(_Answer):
    """Device and precision of the model, after `auto` settings are resolved."""

    device: card.Device
    provider: str = Field(description="ONNX Runtime's.", examples=["CPUExecutionProvider"])
    precision: card.RunPrecision


class HeadAnswer(_Answer):
    """The head with the trained labels."""

    kind: str = Field(examples=["ml_decoder"])
    activation: card.Activation
    maps: bool = Field(description="Whether `explain` works for the trained labels.")
    threshold: float = Field(description="Of labels without their own.")
    by_purpose: card.ByPurpose = {}
    calibration: card.HeadCalibration | None = Field(
        description="Null: scores are not probabilities."
    )


class EmbeddingSpaceAnswer(_Answer):
    """The embeddings that fit the open head."""

    encoder: str = Field(examples=["all-MiniLM-L6-v2"])
    width: int = Field(description="Values of an embedding.")
    template: str = Field(description="Text to encode; `{}` is the label's name.")
    descriptions: int = Field(description="Most texts of a label; their embeddings are joined.")
    fingerprint: str = Field(description="Embeddings of another fingerprint do not fit.")


class OpenHeadAnswer(_Answer):
    """The head that scores any label."""

    kind: str = Field(examples=["ml_decoder"])
    activation: card.Activation = Field(description="A softmax is over the labels of a set.")
    embedding_space: EmbeddingSpaceAnswer
    threshold: float = Field(description="Of labels without their own.")
    by_purpose: card.ByPurpose = {}
    calibration: card.HeadCalibration | None = Field(description="Measured on labels not trained.")
    trained_names: card.HeadCalibration | None = Field(
        description="Of labels named as trained ones."
    )
    encodes_text: bool = Field(description="Whether a label needs no embedding.")
    maps: bool = Field(description="Whether `explain` works for open labels.")
    ranked: _Ranked = False
    screen: card.Screen | None = Field(
        description="Null if the bundle has no screen, or it is off."
    )


class InfoAnswer(_Answer):
    """Answer of `/info`: the bundle's model card."""

    model: NameAndVersion
    license: str = Field(description="Of the weights: an SPDX identifier or free text.")
    provenance: card.Provenance
    input: card.InputContract
    head: HeadAnswer | None = Field(description="Null if there are no trained labels.")
    open_head: OpenHeadAnswer | None = Field(description="Null if labels cannot be added.")
    labels: list[card.Label] = Field(description="The trained labels, in the order of the logits.")
    background: card.BackgroundPhotos | None = Field(description="Null if labels learn no photos.")
    metrics: list[card.Metric]
    runtime: RuntimeAnswer


def answer_info(pipeline: Pipeline) -> InfoAnswer:
    """Returns the model card of the pipeline's bundle."""
    bundle, encoders = pipeline.bundle, pipeline.catalogue.encoders
    fields: dict[str, Any] = dict(bundle.card, model=bundle.card, head=None, open_head=None)
    if (head := bundle.card.trained_head) is not None:
        fields["head"] = {**dict(head), "maps": pipeline.explainer.has_trained}
    if encoders is not None:
        open_head: dict[str, Any] = {**dict(encoders.head), "ranked": encoders.head.ranked}
        open_head |= {"encodes_text": encoders.encodes_text, "maps": pipeline.explainer.has_open}
        if not pipeline.settings.screen:
            open_head["screen"] = None
        fields["open_head"] = open_head
    fields |= {"labels": bundle.labels, "runtime": pipeline.engine}
    return InfoAnswer.model_validate(fields)
