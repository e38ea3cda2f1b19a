"""Input tensors: what stands in an inference request -> photos or pixels.

In: a tensor's name, shape and datatype, and its values as JSON or as bytes. Out: the files of
photos (`image`, BYTES), or uint8 [B, H, W, 3] (`pixels`, UINT8). Next: `request.py`.
"""

from __future__ import annotations

import math
import struct
from itertools import chain
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, Field

from service.bundle.card import InputContract
from service.errors import InvalidTensors
from service.http.requests.uploads import Base64Image
from service.images.decode import PixelArray

IMAGE = "image"
PIXELS = "pixels"

_LARGEST_DIMENSION = 2**31 - 1
_LENGTH = struct.Struct("<I")


def _check_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, which no answer could repeat
        raise ValueError("not Unicode") from error
    return text


Text = Annotated[str, AfterValidator(_check_unicode)]
Dimension = Annotated[int, Field(strict=True, ge=0, le=_LARGEST_DIMENSION)]


class InputTensor(BaseModel):
    """A tensor as it stands in the request; what is not known is ignored, as the protocol has it.

    Attributes:
        name: of the input.
        shape: its dimensions.
        datatype: the protocol's name of the type.
        parameters: `binary_data_size`, where the values follow the JSON as bytes.
        data: values in row-major order, flat or nested; None where they are bytes.
    """

    name: Text
    shape: Annotated[list[Dimension], Field(min_length=1, max_length=8)]
    datatype: str
    parameters: dict[str, Any] = {}
    data: Any = None


def read_images(tensor: InputTensor, raw: memoryview | None, most: int) -> tuple[bytes, ...]:
    """Returns the files of the photos of a BYTES tensor [B] or [B, 1].

    Args:
        tensor: the input; its values are base64 where they are JSON.
        raw: its values where they are bytes: each with its length before it, 4 bytes,
            little-endian.
        most: most photos in a request.

    Raises:
        InvalidTensors: the tensor is not what it says, or not what the input takes.
        MalformedBody: a value is not base64.
    """
    _check_datatype(tensor, "BYTES")
    if len(tensor.shape) > 2 or tensor.shape[1:] not in ([], [1]):
        raise InvalidTensors(f"Input '{IMAGE}' has shape [B] or [B, 1]")
    _check_batch(tensor, most)
    if raw is not None:
        return _check_count(tensor, _split_elements(raw))
    texts = _flatten(tensor.data)
    if not all(isinstance(text, str) for text in texts):
        raise InvalidTensors(f"The values of input '{IMAGE}' are base64 texts")
    return tuple(Base64Image(text).decode() for text in _check_count(tensor, tuple(texts)))


def read_pixels(
    tensor: InputTensor, raw: memoryview | None, contract: InputContract, most: int
) -> PixelArray:
    """Returns the pixels of a UINT8 tensor, uint8 [B, H, W, 3].

    Args:
        tensor: the input.
        raw: its values where they are bytes.
        contract: H and W of the model.
        most: most photos in a request.

    Raises:
        InvalidTensors: the tensor is not what it says, or not what the input takes.
    """
    _check_datatype(tensor, "UINT8")
    size = [contract.height, contract.width, 3]
    if tensor.shape[1:] != size:
        raise InvalidTensors(f"Input '{PIXELS}' has shape [B, {', '.join(map(str, size))}]")
    _check_batch(tensor, most)
    values = _read_numbers(tensor) if raw is None else np.frombuffer(raw, np.uint8)
    _check_size(tensor, values.size)
    return values.reshape(tensor.shape)


def _read_numbers(tensor: InputTensor) -> PixelArray:
    # NumPy would take texts too, and pad each to the length of the longest.
    values = _flatten(tensor.data, levels=len(tensor.shape) - 1)
    kinds = set(map(type, values))
    if list in kinds:
        raise InvalidTensors("The values are not nested evenly")
    if kinds - {int} or (values and not 0 <= min(values) <= max(values) <= 255):
        raise InvalidTensors(f"The values of input '{PIXELS}' are whole numbers from 0 to 255")
    return np.array(values, np.uint8)


def _split_elements(raw: memoryview) -> tuple[bytes, ...]:
    elements = []
    while raw:
        if len(raw) < _LENGTH.size:
            raise InvalidTensors("The binary data ends within a length")
        (length,) = _LENGTH.unpack(raw[: _LENGTH.size])
        raw = raw[_LENGTH.size :]
        if length > len(raw):
            raise InvalidTensors("The binary data ends within a value")
        elements.append(bytes(raw[:length]))
        raw = raw[length:]
    return tuple(elements)


def _flatten(data: object, *, levels: int = 1) -> list[Any]:
    """Takes up to so many levels of lists away; what is nested unevenly keeps some."""
    if not isinstance(data, list):
        raise InvalidTensors("An input has neither 'data' nor binary data")
    for _ in range(levels):
        if not all(isinstance(value, list) for value in data):
            break
        data = list(chain.from_iterable(data))
    return data


def _check_datatype(tensor: InputTensor, datatype: str) -> None:
    if tensor.datatype != datatype:
        raise InvalidTensors(f"Input '{tensor.name}' has datatype {datatype}")


def _check_batch(tensor: InputTensor, most: int) -> None:
    if not 1 <= tensor.shape[0] <= most:
        raise InvalidTensors(f"A request takes 1 to {most} photos")


def _check_count(tensor: InputTensor, values: tuple[Any, ...]) -> tuple[Any, ...]:
    _check_size(tensor, len(values))
    return values


def _check_size(tensor: InputTensor, count: int) -> None:
    wanted = math.prod(tensor.shape)
    if count != wanted:
        raise InvalidTensors(f"Input '{tensor.name}' has {count} values, and by its shape {wanted}")
