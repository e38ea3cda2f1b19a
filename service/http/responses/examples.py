"""Answers about a label's photos: what it learns from them, and the threshold that fits them."""

from __future__ import annotations

from pydantic import Field

from service.http.responses.schemas import (
    Answer,
    ImageFailure,
    NameAndVersion,
    Separation,
    describe_separation,
)
from service.pipeline.teaching import Taught

# Fewer photos choose a threshold by chance.
_MIN_POSITIVE = 5


class PhotoScore(Answer):
    """The score of the label on one photo."""

    score: float = Field(ge=0, le=1, examples=[0.93])


class OperatingPointAnswer(Answer):
    """Precision and recall of a threshold on the photos."""

    threshold: float = Field(ge=0, le=1, examples=[0.61])
    precision: float | None = Field(
        ge=0, le=1, description="Null if no photo reaches the threshold.", examples=[0.9]
    )
    recall: float = Field(ge=0, le=1, examples=[0.75])


class CalibrationAnswer(Answer):
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


class ExampleCounts(Answer):
    """The photos that a label has learnt from."""

    positive: int = Field(description="Different photos that show the label.", examples=[5])
    negative: int = Field(description="Different photos that do not show it.", examples=[0])
    added: int = Field(description="Of this request.", examples=[4])
    repeated: int = Field(
        description="Of this request, not counted: the same or nearly the same as others.",
        examples=[1],
    )


class LessonAnswer(Answer):
    """Answer of `/labels/{name}/examples`: the label after learning."""

    label_set: NameAndVersion
    label: str = Field(examples=["our mug"])
    examples: ExampleCounts
    separation: Separation
    threshold: float = Field(ge=0, le=1, examples=[0.5])
    calibrated: bool = Field(description="Whether `threshold` is the label's own.")
    positive: list[PhotoScore] = Field(
        description="How the photos of this request score now, in their order."
    )
    negative: list[PhotoScore] = Field(description="In the order of the photos.")
    advice: str | None = Field(
        description="What is missing to choose a threshold; null if nothing is.", examples=[None]
    )


def answer_lesson(taught: Taught, label: str) -> LessonAnswer:
    """Returns what a label has learnt."""
    labels, place = taught.labels, taught.labels.positions[label]
    learnt = labels.learnt
    assert learnt is not None  # the label is in it
    row = int(learnt.positions.searchsorted(place))
    lesson = learnt.lessons[row]
    counts = {"positive": lesson.positive.count, "negative": lesson.negative.count}
    return LessonAnswer(
        label_set=NameAndVersion.model_validate(labels),
        label=label,
        examples=ExampleCounts(**counts, added=taught.added, repeated=taught.repeated),
        separation=describe_separation(lesson, float(learnt.separations[row])),
        threshold=labels.thresholds[place],
        calibrated=labels.calibrated[place],
        positive=[PhotoScore(score=score) for score in taught.positive],
        negative=[PhotoScore(score=score) for score in taught.negative],
        advice=_advise(**counts),
    )


def _advise(positive: int, negative: int) -> str | None:
    if positive >= _MIN_POSITIVE and negative:
        return None
    return (
        f"Too few photos to choose a threshold: send at least {_MIN_POSITIVE} that show the label, "
        "and some that do not."
    )
