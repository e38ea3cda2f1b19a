"""Answers about a label's photos: the threshold that fits them, and what it learns from them."""

from pydantic import BaseModel, Field

from service.http.responses.schemas import ImageFailure, NameAndVersion, Separation


class PhotoScore(BaseModel):
    """The score of the label on one photo."""

    score: float = Field(ge=0, le=1, examples=[0.93])


class OperatingPointAnswer(BaseModel):
    """Precision and recall of a threshold on the photos."""

    threshold: float = Field(ge=0, le=1, examples=[0.61])
    precision: float | None = Field(ge=0, le=1, description="Null if no photo reaches it.")
    recall: float = Field(ge=0, le=1, examples=[0.75])


class CalibrationAnswer(BaseModel):
    """Answer of `/labels/{name}/calibrate`."""

    label_set: NameAndVersion
    label: str = Field(examples=["red panda"])
    current: OperatingPointAnswer | None = Field(description="At the label's present threshold.")
    best: OperatingPointAnswer | None = Field(
        description="At the one of best F1, or the lowest that reaches `precision_target`."
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
