"""Uploads: the body of a request -> still encoded images and the other fields.

In: a request whose body is multipart, one raw image, or JSON with base64. Out: an
`Upload`. Bytes are counted while they arrive, whatever Content-Length says, and the
body has to be complete in time. Next: `parameters.py` for the fields, `pipeline.py` for
the images.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from starlette.requests import ClientDisconnect, Request

from service.errors import (
    BodyTimeout,
    BodyTooLarge,
    MalformedBody,
    MissingField,
    TooManyImages,
    UnknownField,
    UnsupportedContentEncoding,
    UnsupportedMediaType,
)
from service.http.requests.budget import HeldBody
from service.http.requests.json import MOST_PARTS, parse_aside
from service.http.requests.multipart import Form, FormShape, read_multipart
from service.labels.definition import MAX_EMBEDDING_VALUES
from service.scheduling.timeouts import finish_within
from service.settings import Settings

MULTIPART = "multipart/form-data"
JSON = "application/json"
BYTES = "application/octet-stream"
RAW_IMAGE = "image/*"
URL_FIELD = "url"
_MOST_DIGITS = 18

ReadT = TypeVar("ReadT")


@dataclass(frozen=True)
class UploadShape:
    """What the body of a route may hold.

    Attributes:
        form: the fields; JSON bodies have the same names as multipart bodies.
        takes_raw_image: whether one bare image is a body too.
        takes_url: whether a JSON body may have `url` in the place of the image.
    """

    form: FormShape
    takes_raw_image: bool
    takes_url: bool = False

    @property
    def media_types(self) -> tuple[str, ...]:
        """The Content-Types that the route reads."""
        return (MULTIPART, RAW_IMAGE, JSON) if self.takes_raw_image else (MULTIPART, JSON)


@dataclass(frozen=True)
class Base64Image:
    """An image as it stood in JSON."""

    text: str

    def decode(self) -> bytes:
        """Returns the image's bytes.

        Raises:
            MalformedBody: this is not standard base64 (RFC 4648, section 4).
        """
        try:
            return base64.b64decode(self.text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise MalformedBody("The image is not standard base64 without a prefix") from error


@dataclass(frozen=True)
class RawImage:
    """An image as it stood in a multipart part or as the whole body."""

    data: bytes

    def decode(self) -> bytes:
        """Returns the image's bytes."""
        return self.data


# Base64 is decoded per image, so that one bad text of a batch costs only itself.
UploadedImage = RawImage | Base64Image


@dataclass(frozen=True)
class Upload:
    """What a request brings.

    Attributes:
        images: at least one, or none where there is a `url`.
        fields: the others, not yet validated.
        url: where its only image is; `fetching.py` gets it.
    """

    images: tuple[UploadedImage, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    url: str | None = None


async def read_upload(request: Request, shape: UploadShape, settings: Settings) -> Upload:
    """Reads the body of a request, within the size and the time of `settings`.

    Raises:
        RequestError: the body is too large, too slow, malformed, of another type, or does
            not hold what the route takes.
        QueueFull: the bodies of other requests fill the memory.
        starlette.requests.ClientDisconnect: the client left before the body was complete.
    """
    _refuse_encoding(request)
    return await _finish_in_time(_read_body(request, shape, settings.max_body_bytes), settings)


async def read_json_object(request: Request, settings: Settings) -> dict[str, Any]:
    """Reads a JSON object that may hold a label set, within the size and the time of `settings`.

    Raises:
        RequestError: the body is too large, too slow, malformed or of another type.
        QueueFull: the bodies of other requests fill the memory.
        starlette.requests.ClientDisconnect: the client left before the body was complete.
    """
    _refuse_encoding(request)
    if _media_type(request.headers.get("content-type", "")) != JSON:
        raise UnsupportedMediaType((JSON,))
    # A label may be an object of three members, one of them a text or a list of numbers.
    most_parts = MOST_PARTS + 6 * settings.max_labels_per_set
    most_numbers = MAX_EMBEDDING_VALUES * settings.max_labels_per_set
    return await parse_aside(await read_body(request, settings), most_parts, most_numbers)


async def read_body(request: Request, settings: Settings) -> bytes:
    """Reads a body of any type, within the size and the time of `settings`.

    Raises:
        RequestError: the body is compressed, too large or too slow.
        starlette.requests.ClientDisconnect: the client left before the body was complete.
    """
    _refuse_encoding(request)
    chunks = _CountedBody(request, settings.max_body_bytes)
    return await _finish_in_time(_join(chunks), settings)


async def _finish_in_time(reading: Coroutine[Any, Any, ReadT], settings: Settings) -> ReadT:
    try:
        return await finish_within(settings.body_timeout_seconds, reading)
    except TimeoutError as error:
        raise BodyTimeout(settings.body_timeout_seconds) from error


def _refuse_encoding(request: Request) -> None:
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedContentEncoding


async def _read_body(request: Request, shape: UploadShape, max_bytes: int) -> Upload:
    content_type = request.headers.get("content-type", "")
    media_type = _media_type(content_type)
    if not media_type and not _has_body(request):
        raise MissingField(shape.form.image_field)
    chunks = _CountedBody(request, max_bytes)
    if media_type == MULTIPART:
        return _from_form(await read_multipart(chunks, content_type, shape.form), shape.form)
    if media_type == JSON:
        return _from_json(await parse_aside(await _join(chunks)), shape)
    if media_type.startswith("image/") and shape.takes_raw_image:
        return Upload((RawImage(await _join(chunks)),))
    raise UnsupportedMediaType(shape.media_types)


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _has_body(request: Request) -> bool:
    return (
        "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
    )


class _CountedBody:
    """The chunks of a body as they arrive, none of them empty, counted while they do."""

    def __init__(self, request: Request, limit: int) -> None:
        """Reads the body of `request`, within so many bytes."""
        declared = request.headers.get("content-length", "")
        # Python refuses to read thousands of digits, be they zeros.
        digits = declared.lstrip("0")
        if digits.isdecimal() and (len(digits) > _MOST_DIGITS or int(digits) > limit):
            raise BodyTooLarge(limit)
        self._receive = request.receive
        self._held: HeldBody = request.state.held_body
        self._limit = limit
        self._received = 0
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._ended:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self._ended = not message.get("more_body", False)
            if chunk := self._count(message.get("body", b"")):
                return chunk
        raise StopAsyncIteration

    def _count(self, chunk: bytes) -> bytes:
        self._received += len(chunk)
        if self._received > self._limit:
            raise BodyTooLarge(self._limit)
        self._held.grow(len(chunk))
        return chunk


async def _join(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


def _from_form(form: Form, shape: FormShape) -> Upload:
    if not form.images:
        raise MissingField(shape.image_field)
    images = tuple(RawImage(image) for image in form.images)
    fields: dict[str, Any] = {}
    for name, values in form.texts.items():
        texts = [_decode_text(value) for value in values]
        fields[name] = texts if name in shape.list_fields else texts[0]
    return Upload(images, fields)


def _decode_text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedBody("A text field is not UTF-8") from error


def _from_json(fields: dict[str, Any], upload: UploadShape) -> Upload:
    shape = upload.form
    known = (*shape.names, URL_FIELD) if upload.takes_url else shape.names
    for name in fields:
        if name not in known:
            raise UnknownField(name, known)
    if URL_FIELD in fields:
        return _from_url(fields, shape)
    if shape.image_field not in fields:
        raise MissingField(shape.image_field)
    value = fields.pop(shape.image_field)
    texts = value if shape.takes_list else [value]
    if not (isinstance(texts, list) and all(isinstance(text, str) for text in texts)):
        kind = "a list of base64 texts" if shape.takes_list else "a base64 text"
        raise MalformedBody(f"Field '{shape.image_field}' is not {kind}")
    if not texts:
        raise MissingField(shape.image_field)
    if len(texts) > shape.max_images:
        raise TooManyImages(shape.max_images)
    return Upload(tuple(Base64Image(text) for text in texts), fields)


def _from_url(fields: dict[str, Any], shape: FormShape) -> Upload:
    if shape.image_field in fields:
        raise MalformedBody(f"Give either '{shape.image_field}' or '{URL_FIELD}'")
    url = fields.pop(URL_FIELD)
    if not isinstance(url, str):
        raise MalformedBody(f"Field '{URL_FIELD}' is not a text")
    return Upload((), fields, url)
