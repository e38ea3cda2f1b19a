"""Metadata: what the server and the model say of themselves, as the protocol has it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from service.bundle.card import ModelCard
from service.http.open_inference.request import LABELS, SCORES
from service.http.open_inference.tensors import IMAGE, PIXELS

PLATFORM = "onnxruntime_onnx"
EXTENSIONS = ("binary_tensor_data", "classification")


class _Answer(BaseModel):
    model_config = ConfigDict(protected_namespaces=())


class ServerAnswer(_Answer):
    """Answer of `/v2`."""

    name: str = Field(examples=["ml-decoder-serve"])
    version: str
    extensions: list[str] = Field(examples=[list(EXTENSIONS)])


class LiveAnswer(_Answer):
    """Answer of `/v2/health/live`."""

    live: Literal[True] = True


class ReadyAnswer(_Answer):
    """Answer of `/v2/health/ready`."""

    ready: Literal[True] = True


class ModelReadyAnswer(ReadyAnswer):
    """Answer of `/v2/models/{name}/ready`."""

    name: str


class TensorAnswer(_Answer):
    """A tensor of a model; -1 is any size."""

    name: str
    datatype: str
    shape: list[int]


class ModelAnswer(_Answer):
    """Answer of `/v2/models/{name}`."""

    name: str = Field(examples=["ml-decoder-lite0"])
    versions: list[str] = Field(examples=[["1.0.0"]])
    platform: str = Field(examples=[PLATFORM])
    inputs: list[TensorAnswer] = Field(
        description=f"A request gives one of them: `{IMAGE}` holds files (base64 where they are "
        f"JSON), `{PIXELS}` upright RGB of the model's size."
    )
    outputs: list[TensorAnswer] = Field(
        description=f"`{SCORES}` of each photo, one column a label; `{LABELS}` names the columns."
    )


def describe_model(card: ModelCard) -> ModelAnswer:
    """Returns the metadata of the bundle's model."""
    pixels = [-1, card.input.height, card.input.width, 3]
    return ModelAnswer(
        name=card.name,
        versions=[card.version],
        platform=PLATFORM,
        inputs=[
            TensorAnswer(name=IMAGE, datatype="BYTES", shape=[-1]),
            TensorAnswer(name=PIXELS, datatype="UINT8", shape=pixels),
        ],
        outputs=[
            TensorAnswer(name=SCORES, datatype="FP32", shape=[-1, -1]),
            TensorAnswer(name=LABELS, datatype="BYTES", shape=[-1]),
        ],
    )
