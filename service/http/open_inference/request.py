"""The inference request: a body -> photos or pixels, the question, and the outputs to send.

In: JSON, or JSON with the tensors' bytes behind it (the binary tensor extension). Out: an
`InferRequest`. Exactly one of the inputs `image` and `pixels` is given. Next: the pipeline, then
`answer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from service.bundle.card import InputContract
from service.errors import InvalidTensors
from service.http.open_inference.tensors import (
    IMAGE,
    PIXELS,
    InputTensor,
    Text,
    read_images,
    read_pixels,
)
from service.http.requests.json import MOST_PARTS, parse_json
from service.images.decode import DecodedImage
from service.labels.question import Question, check_question

HEADER_LENGTH = "Inference-Header-Content-Length"
SCORES = "scores"
LABELS = "labels"
OUTPUTS = (SCORES, LABELS)

# Scores are asked for whole; classification cuts them off on the way out.
_ALL_LABELS = 2**31 - 1
_SHOWN_CHARACTERS = 80
ValueT = TypeVar("ValueT", bool, int, str)


class _Samples(dict[str, int]):
    """Whole numbers by their digits: those that pixels are made of, and any other.

    A photo has hundreds of thousands; Python code that reads each takes twice as long.
    """

    def __missing__(self, digits: str) -> int:
        return int(digits)


_SAMPLES = _Samples((str(sample), sample) for sample in range(256))


class OutputTensor(BaseModel):
    """An output that is asked for."""

    name: Text
    parameters: dict[str, Any] = {}


class InferBody(BaseModel):
    """The JSON of a request; what is not known is ignored, as the protocol has it."""

    id: Annotated[Text, Field(max_length=200)] | None = None
    parameters: dict[str, Any] = {}
    inputs: Annotated[list[InputTensor], Field(max_length=16)]
    outputs: Annotated[list[OutputTensor], Field(max_length=16)] = []


@dataclass(frozen=True)
class Output:
    """An output to send.

    Attributes:
        name: `scores` or `labels`.
        classes: how many best labels to send instead of scores; None sends the scores.
        binary: whether its values follow the JSON as bytes.
    """

    name: str
    classes: int | None = None
    binary: bool = False


@dataclass(frozen=True, eq=False)
class InferRequest:
    """What is asked.

    Attributes:
        id: the client's name for the request.
        photos: B files of photos, or their pixels.
        question: asks for every label of the sets.
        outputs: what to send, in the client's order.
    """

    id: str | None
    photos: tuple[bytes | DecodedImage, ...]
    question: Question
    outputs: tuple[Output, ...]


def parse_infer_request(
    body: bytes, header_length: str | None, contract: InputContract, most: int
) -> InferRequest:
    """Reads a request.

    Args:
        body: the whole body.
        header_length: how many bytes of it are JSON, as the header says; None means all.
        contract: what `pixels` have to be.
        most: most photos in a request.

    Raises:
        RequestError: the request is malformed, or not what the model takes.
    """
    head, raw = _split(body, header_length)
    nested = most * contract.height * (contract.width + 1)  # the lists of `pixels`
    numbers = most * contract.height * contract.width * 3
    try:
        asked = InferBody.model_validate(
            parse_json(head, MOST_PARTS + nested, numbers, _SAMPLES.__getitem__)
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidTensors(f"'{place[:_SHOWN_CHARACTERS]}': {first['msg']}") from error
    parameters = dict(asked.parameters)
    binary = _take(parameters, "binary_data_output", bool) or False
    question = _read_question(parameters)
    return InferRequest(
        asked.id,
        _read_photos(asked.inputs, raw, contract, most),
        question,
        _read_outputs(asked, binary),
    )


def _split(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    if header_length is None:
        return body, memoryview(b"")
    # Twenty digits are more than any body has; int() of a megabyte of them takes a while.
    if not (header_length.isascii() and header_length.isdecimal() and len(header_length) <= 20):
        raise InvalidTensors(f"The header {HEADER_LENGTH} is a number of bytes")
    length = int(header_length)
    if length > len(body):
        raise InvalidTensors(f"The body is shorter than the header {HEADER_LENGTH} says")
    return body[:length], memoryview(body)[length:]


def _read_photos(
    inputs: list[InputTensor], raw: memoryview, contract: InputContract, most: int
) -> tuple[bytes | DecodedImage, ...]:
    names = [tensor.name for tensor in inputs]
    for name in names:
        if name not in (IMAGE, PIXELS):
            raise InvalidTensors(f"Input '{name[:_SHOWN_CHARACTERS]}' is unknown")
    if len(names) != 1:
        raise InvalidTensors(f"Give exactly one input, '{IMAGE}' or '{PIXELS}'")
    (tensor,) = inputs
    own = _take_bytes(tensor, raw)
    if tensor.name == IMAGE:
        return read_images(tensor, own, most)
    pixels = read_pixels(tensor, own, contract, most)
    return tuple(DecodedImage(each, contract.width, contract.height) for each in pixels)


def _take_bytes(tensor: InputTensor, raw: memoryview) -> memoryview | None:
    """Returns the bytes of the request's only tensor; None where its values are JSON."""
    size = _take(dict(tensor.parameters), "binary_data_size", int)
    if (size or 0) != len(raw):
        raise InvalidTensors("The bytes behind the JSON are not as many as 'binary_data_size' says")
    if size is not None and tensor.data is not None:
        raise InvalidTensors("An input has both 'data' and binary data")
    return None if size is None else raw


def _read_question(parameters: dict[str, Any]) -> Question:
    fields: dict[str, Any] = {"top_k": _ALL_LABELS}
    names = _take(parameters, "label_set", str)
    if names is not None:
        fields["label_set"] = [name.strip() for name in names.split(",")]
    version = _take(parameters, "min_version", int)
    if version is not None:
        fields["min_version"] = version
    _refuse_rest(parameters)
    return check_question(fields, "body")


def _read_outputs(asked: InferBody, binary: bool) -> tuple[Output, ...]:
    if not asked.outputs:
        return tuple(Output(name, binary=binary) for name in OUTPUTS)
    names = [output.name for output in asked.outputs]
    for name in names:
        if name not in OUTPUTS:
            raise InvalidTensors(f"Output '{name[:_SHOWN_CHARACTERS]}' is unknown")
        if names.count(name) > 1:
            raise InvalidTensors(f"Output '{name}' is asked for more than once")
    return tuple(_read_output(output, binary) for output in asked.outputs)


def _read_output(output: OutputTensor, binary: bool) -> Output:
    parameters = dict(output.parameters)
    own = _take(parameters, "binary_data", bool)
    classes = _take(parameters, "classification", int)
    _refuse_rest(parameters)
    if classes is not None and (classes < 1 or output.name != SCORES):
        raise InvalidTensors(f"'classification' is 1 or more, and of output '{SCORES}'")
    return Output(output.name, classes, binary if own is None else own)


def _take(parameters: dict[str, Any], name: str, kind: type[ValueT]) -> ValueT | None:
    value = parameters.pop(name, None)
    if value is None or type(value) is kind:  # not isinstance: true is no number here
        return value
    word: Mapping[type, Literal["true or false", "a whole number", "a text"]] = {
        bool: "true or false",
        int: "a whole number",
        str: "a text",
    }
    raise InvalidTensors(f"Parameter '{name}' is {word[kind]}")


def _refuse_rest(parameters: dict[str, Any]) -> None:
    for name in parameters:
        raise InvalidTensors(f"Parameter '{name[:_SHOWN_CHARACTERS]}' is unknown")
