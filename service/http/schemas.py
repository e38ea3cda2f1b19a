"""Schemas: the shape of every answer, as JSON and in the OpenAPI document.

In: what the pipeline and the bundle hold. Out: pydantic models, made by the functions at
the end. Errors are `problems.Problem`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from service.card import Activation, Device, InputContract, Label, Metric, Precision, Provenance
from service.http.problems import Problem
from service.pipeline import Pipeline, Prediction
from service.scoring import Source


class _Answer(BaseModel):
    model_config = ConfigDict(from_attributes=True, protected_namespaces=())


class NameAndVersion(_Answer):
    """What made an answer, exactly."""

    name: str = Field(examples=["ml-decoder-lite0"])
    version: str = Field(examples=["1.0.0"])


class ImageSize(_Answer):
    """Size of an image after its EXIF orientation was applied, pixels."""

    width: int = Field(examples=[640])
    height: int = Field(examples=[480])


class ScoredLabelAnswer(_Answer):
    """One label of an image."""

    label: str = Field(examples=["dog"])
    score: float = Field(ge=0, le=1, examples=[0.93])
    threshold: float = Field(
        ge=0, le=1, description="The label counts as present from this score on.", examples=[0.61]
    )
    source: Source = Field(description="How the model knows the label.")
    calibrated: bool = Field(
        description="Whether `threshold` is the label's own, chosen on validation data."
    )


class TimingsAnswer(_Answer):
    """Where the time went, milliseconds."""

    decode_ms: float = Field(examples=[4.1])
    queue_ms: float = Field(examples=[0.2])
    inference_ms: float = Field(examples=[11.8])
    total_ms: float = Field(examples=[16.3])


class ImageAnswer(_Answer):
    """What was found in one image."""

    image: ImageSize
    labels: list[ScoredLabelAnswer] = Field(description="Best score first.")
    timings: TimingsAnswer


class ImageFailure(_Answer):
    """Why one image of a batch has no labels; the others are not affected."""

    error: Problem


class PredictAnswer(_Answer):
    """Answer of `/predict`."""

    model: NameAndVersion
    label_set: NameAndVersion
    image: ImageSize
    labels: list[ScoredLabelAnswer] = Field(description="Best score first.")
    timings: TimingsAnswer
    request_id: str = Field(description="As in the header `X-Request-ID`.")


class BatchAnswer(_Answer):
    """Answer of `/predict/batch`."""

    model: NameAndVersion
    label_set: NameAndVersion
    results: list[ImageAnswer | ImageFailure] = Field(
        description="One entry for each image, in their order."
    )
    request_id: str = Field(description="As in the header `X-Request-ID`.")


class HealthAnswer(_Answer):
    """Answer of `/livez` and `/readyz`."""

    status: Literal["alive", "ready"]


class RuntimeAnswer(_Answer):
    """What really runs the model, which `auto` settings chose."""

    device: Device
    provider: str = Field(
        description="ONNX Runtime execution provider.", examples=["CPUExecutionProvider"]
    )
    precision: Precision


class HeadAnswer(_Answer):
    """The head with the trained labels."""

    kind: str = Field(examples=["ml_decoder"])
    activation: Activation


class InfoAnswer(_Answer):
    """Answer of `/info`: the model card of the bundle that is served."""

    model: NameAndVersion
    license: str = Field(examples=["Apache-2.0"])
    provenance: Provenance
    input: InputContract
    head: HeadAnswer
    labels: list[Label] = Field(description="In the order of the logits.")
    metrics: list[Metric]
    runtime: RuntimeAnswer


def name_model(pipeline: Pipeline) -> NameAndVersion:
    """Returns name and version of the bundle's model."""
    return NameAndVersion.model_validate(pipeline.bundle.card)


def name_label_set(pipeline: Pipeline) -> NameAndVersion:
    """Returns name and version of the trained labels, which change with the model only."""
    return NameAndVersion(name="trained", version=pipeline.bundle.card.version)


def answer_image(prediction: Prediction) -> ImageAnswer:
    """Returns the answer for one image."""
    return ImageAnswer(
        image=ImageSize(width=prediction.width, height=prediction.height),
        labels=[ScoredLabelAnswer.model_validate(label) for label in prediction.labels],
        timings=TimingsAnswer.model_validate(prediction.timings),
    )


def answer_info(pipeline: Pipeline) -> InfoAnswer:
    """Returns the model card of the bundle that the pipeline serves."""
    card = pipeline.bundle.card
    return InfoAnswer(
        model=name_model(pipeline),
        license=card.license,
        provenance=card.provenance,
        input=card.input,
        head=HeadAnswer.model_validate(card.trained_head),
        labels=list(pipeline.bundle.labels),
        metrics=list(card.metrics),
        runtime=RuntimeAnswer.model_validate(pipeline.engine),
    )
