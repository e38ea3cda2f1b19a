"""Answers about a label's photos: the threshold that fits them, and what it learns from them."""

from collections.abc import Sequence

from pydantic import BaseModel, Field

from service.calibration import MIN_POSITIVES
from service.http.responses.schemas import (
    ImageFailure,
    NameAndVersion,
    Separation,
    describe_examples,
)
from service.labels.registered_sets import LearntLabel

_ADVICE = (
    f"A threshold needs at least {MIN_POSITIVES} photos that show the label, and some that do not."
)
# Below a separation of 1 the examples change next to nothing.
_WEAK_ADVICE = "The photos have little in common: send more, or cut out the thing that they show."


class PhotoScore(BaseModel):
    """The score of the label on one photo."""

    score: float = Field(ge=0, le=1, examples=[0.93])


class OperatingPointAnswer(BaseModel):
    """Precision and recall of a threshold on the photos."""

    threshold: float = Field(ge=0, le=1, examples=[0.61])
    precision: float | None = Field(
        ge=0, le=1, description="Null if no photo reaches the threshold.", examples=[0.9]
    )
    recall: float = Field(ge=0, le=1, examples=[0.75])


class CalibrationAnswer(BaseModel):
    """Answer of `/labels/{name}/calibrate`."""

    label_set: NameAndVersion
    label: str = Field(examples=["red panda"])
    current: OperatingPointAnswer | None = Field(
        description="At the label's present threshold. Null if no positive photo can be used."
    )
    best: OperatingPointAnswer | None = Field(
        description="At the threshold of best F1, or the lowest that reaches `precision_target`. "
        "Null if none does, or no positive photo can be used."
    )
    positive: list[PhotoScore | ImageFailure] = Field(description="In the order of the photos.")
    negative: list[PhotoScore | ImageFailure] = Field(description="In the order of the photos.")


class ExampleCounts(BaseModel):
    """The different photos that a label has learnt from, and those of this request."""

    positive: int
    negative: int
    added: int
    repeated: int = Field(description="The same photo as another, or nearly the same.")


class LearntAnswer(BaseModel):
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


def answer_learnt(
    result: LearntLabel, label: str, positive: Sequence[float] = (), negative: Sequence[float] = ()
) -> LearntAnswer:
    """Returns what a label has learnt, and scores of photos of both kinds."""
    labels, learnt = result.labels, result.labels.learnt
    position = labels.positions[label]
    assert learnt is not None, "the label has learnt"
    now = describe_examples(learnt, int(learnt.positions.searchsorted(position)))
    counts = {"positive": now.positive, "negative": now.negative}
    advice = None if now.negative and now.positive >= MIN_POSITIVES else _ADVICE
    if now.positive and now.separation.value < 1:
        advice = _WEAK_ADVICE
    return LearntAnswer(
        label_set=NameAndVersion.model_validate(labels),
        label=label,
        examples=ExampleCounts(**counts, added=result.added, repeated=result.repeated),
        separation=now.separation,
        threshold=labels.thresholds[position],
        calibrated=labels.calibrated[position],
        positive=[PhotoScore(score=score) for score in positive],
        negative=[PhotoScore(score=score) for score in negative],
        advice=advice,
    )
