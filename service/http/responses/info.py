"""The answer of `/info`, as pydantic models."""

from __future__ import annotations

from pydantic import Field

from service.bundle.card import (
    Activation,
    Device,
    HeadCalibration,
    InputContract,
    Label,
    Metric,
    Provenance,
    RunPrecision,
    Screen,
)
from service.http.responses.schemas import Answer, NameAndVersion
from service.pipeline.pipeline import Pipeline


class RuntimeAnswer(Answer):
    """Device and precision of the model, after `auto` settings are resolved."""

    device: Device
    provider: str = Field(
        description="ONNX Runtime execution provider.", examples=["CPUExecutionProvider"]
    )
    precision: RunPrecision


class HeadAnswer(Answer):
    """The head with the trained labels."""

    kind: str = Field(description="Architecture of the head.", examples=["ml_decoder"])
    activation: Activation
    maps: bool = Field(description="Whether `explain` works for the trained labels.")
    threshold: float = Field(description="Threshold of labels without their own.", examples=[0.5])
    calibration: HeadCalibration | None = Field(
        description="How logits become probabilities. Null: scores are the activation of the "
        "checkpoint's logits, which are not probabilities."
    )


class EmbeddingSpaceAnswer(Answer):
    """The embeddings that fit the open head."""

    encoder: str = Field(
        description="Name of the model that makes embeddings.", examples=["all-MiniLM-L6-v2"]
    )
    width: int = Field(description="Values of an embedding.", examples=[384])
    template: str = Field(
        description="Text to encode; {} is the label's name.", examples=["a photo of a {}"]
    )
    descriptions: int = Field(
        description="Most texts of a label, whose embeddings follow each other.",
        examples=[1],
    )
    fingerprint: str = Field(
        description="Identifies the space; embeddings of another space do not fit."
    )


class OpenHeadAnswer(Answer):
    """The head that scores any label."""

    kind: str = Field(description="Architecture of the head.", examples=["ml_decoder"])
    activation: Activation = Field(
        description="A softmax is over the labels of a set. Sets with their own calibration have a "
        "sigmoid."
    )
    embedding_space: EmbeddingSpaceAnswer
    threshold: float = Field(description="Threshold of labels without their own.", examples=[0.5])
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
    screen: Screen | None = Field(description="Null if the bundle has no screen, or it is off.")


class InfoAnswer(Answer):
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
    metrics: list[Metric]
    runtime: RuntimeAnswer


def answer_info(pipeline: Pipeline) -> InfoAnswer:
    """Returns the model card of the pipeline's bundle."""
    card, encoders = pipeline.bundle.card, pipeline.catalogue.encoders
    head, open_head = None, None
    if card.trained_head is not None:
        head = HeadAnswer(**dict(card.trained_head), maps=pipeline.explainer.knows_trained)
    if encoders is not None:
        fields = dict(encoders.head)
        fields["embedding_space"] = EmbeddingSpaceAnswer.model_validate(fields["embedding_space"])
        if not pipeline.settings.screen:
            fields["screen"] = None
        open_head = OpenHeadAnswer(
            **fields, encodes_text=encoders.encodes_text, maps=pipeline.explainer.knows_open
        )
    return InfoAnswer(
        model=NameAndVersion.model_validate(card),
        license=card.license,
        provenance=card.provenance,
        input=card.input,
        head=head,
        open_head=open_head,
        labels=list(pipeline.bundle.labels),
        metrics=list(card.metrics),
        runtime=RuntimeAnswer.model_validate(pipeline.engine),
    )
