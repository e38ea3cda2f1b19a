"""An inference request of `/v2`: JSON, then bytes of tensors; one input, `image` or `pixels`."""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from service.bundle.card import InputContract
from service.errors import InvalidTensors
from service.fields import validate
from service.http.dialects.labelling import ALL_LABELS, Photo, RequestId
from service.http.requests.json import MAX_PARTS, parse_json
from service.images.decode import DecodedImage, PixelArray
from service.question import Question

HEADER_LENGTH = "Inference-Header-Content-Length"
IMAGE: Final = "image"
PIXELS: Final = "pixels"
SCORES: Final = "scores"
LABELS: Final = "labels"

_MAX_DIMENSION = 2**31 - 1
_MAX_TIMEOUT = 2**64 - 1  # Triton's type
_SHARED_MEMORY = "shared_memory_"
_LENGTH_BYTES = 4  # of an unsigned number, little-endian, before each text

Dimension = Annotated[int, Field(strict=True, ge=0, le=_MAX_DIMENSION)]


class _Parameters(BaseModel):
    """Unknown parameters are ignored, as the protocol says."""

    model_config = ConfigDict(extra="allow", strict=True)


class RequestParameters(_Parameters):
    """Parameters of a request."""

    label_set: str | None = Field(default=None, description="Names, separated by commas.")
    min_version: int | None = Field(default=None, description="As in `/predict`.")
    timeout: int | None = Field(
        None, ge=0, le=_MAX_TIMEOUT, description="Microseconds; 0 is the service's deadline."
    )
    binary_data_output: bool | None = Field(default=None, description="Default of `binary_data`.")


class InputParameters(_Parameters):
    """Parameters of an input."""

    binary_data_size: int | None = Field(default=None, description="Bytes behind the JSON.")


class OutputParameters(_Parameters):
    """Parameters of an output."""

    binary_data: bool | None = Field(default=None, description="Send bytes behind the JSON.")
    classification: int | None = Field(None, ge=1, description="So many best labels instead.")


class InputTensor(BaseModel):
    """An input; unknown members are ignored, as the protocol says."""

    name: Literal["image", "pixels"]
    shape: Annotated[list[Dimension], Field(min_length=1, max_length=8)]
    datatype: str
    parameters: InputParameters = InputParameters()
    data: Any = Field(None, description="Values in row-major order, flat or nested.")


class OutputTensor(BaseModel):
    """A requested output."""

    name: Literal["scores", "labels"]
    parameters: OutputParameters = OutputParameters()


class InferBody(BaseModel):
    """The JSON of a request."""

    id: RequestId | None = None
    parameters: RequestParameters = RequestParameters()
    inputs: Annotated[list[InputTensor], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[OutputTensor], Field(max_length=16)] = []


def parse_infer_request(
    body: bytes,
    header_length: str | None,
    contract: InputContract,
    max_photos: int,
    default_sets: list[str] | None,
) -> tuple[InferBody, Question, tuple[Photo, ...]]:
    """Reads a request; its JSON has `header_length` bytes, else all. Raises RequestError."""
    head, raw = _split(body, header_length)
    nested = max_photos * contract.height * (contract.width + 1)  # the lists of `pixels`
    numbers = max_photos * contract.height * contract.width * 3
    values = parse_json(head, MAX_PARTS + nested, numbers)
    asked = validate(InferBody, values, "body")
    _check_unsupported(asked)
    # `classification` keeps the best ones of the answer.
    sets, fields = default_sets, {"top_k": ALL_LABELS, "min_version": asked.parameters.min_version}
    if (names := asked.parameters.label_set) is not None:
        sets = [name.strip() for name in names.split(",")]
    question = validate(Question, {**fields, "label_set": sets}, "body")
    photos = _read_photos(asked.inputs[0], raw, contract, max_photos)
    _complete_outputs(asked)
    return asked, question, photos


def _check_unsupported(asked: InferBody) -> None:
    """Raises `InvalidTensors` for a parameter whose loss would change the answer unnoticed."""
    for name in asked.parameters.model_extra or ():
        if name in Question.model_fields:
            raise InvalidTensors(f"Parameter '{name}' is for /predict and not supported here")
    tensors: list[InputTensor | OutputTensor] = [*asked.inputs, *asked.outputs]
    for tensor in tensors:
        if any(name.startswith(_SHARED_MEMORY) for name in tensor.parameters.model_extra or ()):
            raise InvalidTensors("Shared memory is not supported: send tensors in the body")


def _split(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    if header_length is None:
        return body, memoryview(b"")
    # No body is as long as 20 digits; `int` takes a while for a megabyte of them.
    if not (header_length.isascii() and header_length.isdecimal() and len(header_length) <= 20):
        raise InvalidTensors(f"The header {HEADER_LENGTH} must be a number of bytes")
    length = int(header_length)
    if length > len(body):
        raise InvalidTensors(f"The header {HEADER_LENGTH} is longer than the body")
    return body[:length], memoryview(body)[length:]


def _read_photos(
    tensor: InputTensor, raw: memoryview, contract: InputContract, max_photos: int
) -> tuple[Photo, ...]:
    size = tensor.parameters.binary_data_size
    if (size or 0) != len(raw):
        raise InvalidTensors(f"'binary_data_size' must be {len(raw)}, the bytes after the JSON")
    if size is not None and tensor.data is not None:
        raise InvalidTensors("An input must have 'data' or binary data, not both")
    binary = None if size is None else raw
    datatype, tails, shape = (
        ("BYTES", ([], [1]), "[B] or [B, 1]")
        if tensor.name == IMAGE
        else ("UINT8", ([*contract.shape],), f"[B, {', '.join(map(str, contract.shape))}]")
    )
    if tensor.datatype != datatype:
        raise InvalidTensors(f"Input '{tensor.name}' must have datatype {datatype}")
    if tensor.shape[1:] not in tails:
        raise InvalidTensors(f"Input '{tensor.name}' must have shape {shape}")
    if not 1 <= tensor.shape[0] <= max_photos:
        raise InvalidTensors(f"A request takes 1 to {max_photos} photos")
    if tensor.name == IMAGE:
        return _read_images(tensor, binary)
    values = _read_numbers(tensor) if binary is None else np.frombuffer(binary, np.uint8)
    _check_size(tensor, values.size)
    pixels = values.reshape(tensor.shape)
    return tuple(DecodedImage(photo, contract.width, contract.height) for photo in pixels)


def _read_images(tensor: InputTensor, raw: memoryview | None) -> tuple[bytes | str, ...]:
    """Returns photos: base64 in JSON; binary, files or base64, each after its length."""
    if raw is not None:
        photos: Sequence[bytes | str] = _split_elements(raw)
    else:
        photos = _flatten(tensor.data)
        if not all(isinstance(text, str) for text in photos):
            raise InvalidTensors(f"The values of input '{IMAGE}' must be base64 texts")
    _check_size(tensor, len(photos))
    return tuple(photos)


def _read_numbers(tensor: InputTensor) -> PixelArray:
    """Returns the values as uint8, in one dimension."""
    # NumPy would accept texts too, and pad each to the length of the longest.
    values = _flatten(tensor.data, levels=len(tensor.shape) - 1)
    kinds = set(map(type, values))
    if list in kinds:
        raise InvalidTensors("The values must be nested evenly")
    if kinds - {int} or (values and not 0 <= min(values) <= max(values) <= 255):
        raise InvalidTensors(f"The values of input '{PIXELS}' must be whole numbers from 0 to 255")
    return np.array(values, np.uint8)


def _split_elements(raw: memoryview) -> list[bytes]:
    elements = []
    while raw:
        length = int.from_bytes(raw[:_LENGTH_BYTES], "little")
        end = _LENGTH_BYTES + length
        if end > len(raw):
            raise InvalidTensors("The binary data ends within a value or its length")
        elements.append(bytes(raw[_LENGTH_BYTES:end]))
        raw = raw[end:]
    return elements


def _flatten(data: object, *, levels: int = 1) -> list[Any]:
    """Removes up to `levels` levels of lists; unevenly nested values keep some."""
    if not isinstance(data, list):
        raise InvalidTensors("An input must have a list as 'data', or binary data")
    for _ in range(levels):
        if not all(isinstance(value, list) for value in data):
            break
        data = list(chain.from_iterable(data))
    return data


def _check_size(tensor: InputTensor, count: int) -> None:
    wanted = math.prod(tensor.shape)
    if count != wanted:
        raise InvalidTensors(f"Input '{tensor.name}' has {count} values, and by its shape {wanted}")


def _complete_outputs(asked: InferBody) -> None:
    asked.outputs = asked.outputs or [OutputTensor(name=SCORES), OutputTensor(name=LABELS)]
    seen: set[str] = set()
    for output in asked.outputs:
        name, parameters = output.name, output.parameters
        if name in seen:
            raise InvalidTensors(f"Output '{name}' is requested more than once")
        if parameters.classification is not None and name != SCORES:
            raise InvalidTensors(f"'classification' must be of output '{SCORES}'")
        if parameters.binary_data is None:
            parameters.binary_data = asked.parameters.binary_data_output
        seen.add(name)
