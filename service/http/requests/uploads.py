"""The body of a prediction: multipart, one bare image, or JSON with base64."""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from multipart import (
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
    parse_options_header,
)
from starlette.requests import Request

from service.errors import (
    BodyTooLarge,
    MalformedBody,
    MissingField,
    TooManyImages,
    UnknownField,
    UnsupportedMediaType,
)
from service.http.requests.body import JSON, MULTIPART, RAW_IMAGE, Body
from service.http.requests.json import parse_aside
from service.http.requests.parameters import NOT_UTF8, read_texts
from service.labels.question import Question
from service.settings import Settings

MAX_TEXT_BYTES = 65_536
MAX_TEXT_PARTS = 2048
_URL_FIELD = "url"
# What browsers write before base64. The media type is ignored: the bytes tell it.
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)


@dataclass(frozen=True)
class UploadShape:
    """The body that a route takes, beside the fields of `Question`.

    A batch has several images, in `images`. Other routes take one, in `image`, as the whole body,
    or by its `url` in JSON.
    """

    max_images: int = 1
    batch: bool = False

    @property
    def image_field(self) -> str:
        """The field with the images, in forms and in JSON."""
        return "images" if self.batch else "image"

    @property
    def fields(self) -> tuple[str, ...]:
        """Every known field of a form, the image's first."""
        return (self.image_field, *sorted(Question.model_fields))

    @property
    def media_types(self) -> tuple[str, ...]:
        """The Content-Types of the route."""
        return (MULTIPART, JSON) if self.batch else (MULTIPART, RAW_IMAGE, JSON)


@dataclass(frozen=True)
class Upload:
    """The content of a body: images, or the `url` of the only one, and fields not yet checked.

    `decode_base64` decodes images one by one, so that invalid base64 fails one of a batch only.
    """

    images: list[bytes | str]
    fields: dict[str, Any] = field(default_factory=dict)
    url: str | None = None


def decode_base64(image: bytes | str) -> bytes:
    """Returns the bytes of an image; raises MalformedBody for a text that is not base64.

    The base64 may have line breaks, and `data:image/png;base64,` or the like before it.
    """
    if isinstance(image, bytes):
        return image
    prefix = _DATA_URL.match(image)
    text = image if prefix is None else image[prefix.end() :]
    try:
        return base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True)
    except ValueError as error:
        raise MalformedBody("The image must be standard base64, padded with '='") from error


async def read_upload(request: Request, shape: UploadShape, settings: Settings) -> Upload:
    """Reads the body of a request; raises the errors of `Body`, and RequestError if invalid."""
    body = Body(request, settings)
    content_type = request.headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == MULTIPART:
        return await read_form(body, content_type, shape)
    if media_type == JSON:
        return _read_json(await parse_aside(await body.read()), shape)
    if media_type.startswith("image/") and not shape.batch:
        return Upload([await body.read()])
    length = request.headers.get("content-length", "0")
    if not media_type and length == "0" and "transfer-encoding" not in request.headers:
        raise MissingField(shape.image_field)
    raise UnsupportedMediaType(shape.media_types)


async def read_form(chunks: AsyncIterator[bytes], content_type: str, shape: UploadShape) -> Upload:
    """Reads a `multipart/form-data` body; raises RequestError at the first part over a limit."""
    boundary = parse_options_header(content_type)[1].get("boundary")
    if not boundary:
        raise MalformedBody("The multipart Content-Type names no boundary")
    form = _Form(shape)
    try:
        # Latin-1 decodes any byte: a filename, which is ignored, may be in any encoding.
        parser = PushMultipartParser(boundary, header_charset="latin-1")
        async for chunk in chunks:
            for event in parser.parse(chunk):
                if isinstance(event, MultipartSegment):
                    form.begin_part(event.name.encode("latin-1").decode("utf-8", "replace"))
                elif event is not None:
                    form.add(event)
                else:
                    form.end_part()
        parser.close()
    except MultipartError as error:
        raise MalformedBody("The multipart body is malformed, or its end is missing") from error
    if not form.images:
        raise MissingField(shape.image_field)
    return Upload(form.images, read_texts(form.texts, "body"))


class _Form:
    """Collects the parts of a form.

    A part's name decides, not its filename: some clients send images without, or texts with one.
    """

    def __init__(self, shape: UploadShape) -> None:
        self.images: list[bytes | str] = []
        self.texts: dict[str, list[str]] = defaultdict(list)
        self._shape = shape
        self._image_field = shape.image_field
        self._num_texts = 0
        self._name = ""
        # Most images come in one piece, which is not copied.
        self._pieces: list[bytes | bytearray] = []
        self._length = 0

    def begin_part(self, name: str) -> None:
        self._name, self._pieces, self._length = name, [], 0
        if name == self._image_field:
            if len(self.images) == self._shape.max_images:
                raise TooManyImages(self._shape.max_images)
            return
        if name not in Question.model_fields:
            raise UnknownField(name, self._shape.fields)
        self._num_texts += 1
        if self._num_texts > MAX_TEXT_PARTS:
            raise MalformedBody(f"The form has more than {MAX_TEXT_PARTS} text fields")

    def add(self, piece: bytes | bytearray) -> None:
        self._length += len(piece)
        if self._length > MAX_TEXT_BYTES and self._name != self._image_field:
            raise BodyTooLarge(MAX_TEXT_BYTES, "A text field")
        self._pieces.append(piece)

    def end_part(self) -> None:
        content = b"".join(self._pieces)
        if self._name == self._image_field:
            self.images.append(content)
            return
        self.texts[self._name].append(content.decode("utf-8", NOT_UTF8))


def _read_json(fields: dict[str, Any], shape: UploadShape) -> Upload:
    known = shape.fields if shape.batch else (*shape.fields, _URL_FIELD)
    for name in fields:
        if name not in known:
            raise UnknownField(name, known)
    if _URL_FIELD in fields:
        if shape.image_field in fields:
            raise MalformedBody(f"Give either '{shape.image_field}' or '{_URL_FIELD}'")
        url = fields.pop(_URL_FIELD)
        if not isinstance(url, str):
            raise MalformedBody(f"Field '{_URL_FIELD}' is not a text")
        return Upload([], fields, url)
    return Upload(_take_images(fields, shape), fields)


def _take_images(fields: dict[str, Any], shape: UploadShape) -> list[bytes | str]:
    name = shape.image_field
    if name not in fields:
        raise MissingField(name)
    value = fields.pop(name)
    images = value if shape.batch else [value]
    if not (isinstance(images, list) and all(isinstance(image, str) for image in images)):
        kind = "a list of base64 texts" if shape.batch else "a base64 text"
        raise MalformedBody(f"Field '{name}' is not {kind}")
    if not images:
        raise MissingField(name)
    if len(images) > shape.max_images:
        raise TooManyImages(shape.max_images)
    return images
