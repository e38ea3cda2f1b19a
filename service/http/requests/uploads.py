"""The body of a prediction: multipart, one bare image, or JSON with base64."""

import base64
import binascii
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header
from starlette.requests import Request

from service import errors
from service.caller import CALLER
from service.errors import MalformedBody, quote
from service.http.requests.body import BYTES, JSON, MULTIPART, RAW_IMAGE, Body, read_media_type
from service.http.requests.json import read_json
from service.http.requests.parameters import NOT_UTF8, read_texts
from service.pipeline.served import ServedPipeline
from service.question import Question
from service.settings import Settings

MAX_TEXT_BYTES = 65_536
MAX_TEXT_PARTS = 2048
MAX_EXAMPLES = 200
# RFC 2045; the first three leave the content as it is.
_TRANSFER_ENCODINGS = ("7bit", "8bit", "binary", "base64", "quoted-printable")
_URL_FIELD = "url"
_TEXTS_FIELD = "texts"
# Browsers write this before base64. The media type is ignored: formats are recognised by content.
DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
"""Start of a text that is an image."""
# JPEG, PNG, WebP, GIF, BMP and HEIC or AVIF in base64; no image itself begins so.
_ENCODED = re.compile(
    rb"\s*((?i:data:[^,]{0,200};base64,)"
    rb"|(/9j/|iVBORw0KGgo|UklGR|R0lGOD|Qk|AAAA)[A-Za-z0-9+/\r\n]{24})"
)
# Types of a body whose client set none; it may be JSON or a form.
_UNNAMED = ("", BYTES, "text/plain")
_NO_IMAGE = re.compile(rb"\s*(\{|--)")


@dataclass(frozen=True)
class UploadShape:
    """The body of a route: `images` of a batch, one `image` or a `url`; with `texts` maybe none."""

    max_images: int = 1
    batch: bool = False
    fields: Collection[str] = tuple(sorted(Question.model_fields))

    @property
    def image_field(self) -> str:
        """The field with the images, in forms and in JSON."""
        return "images" if self.batch else "image"


@dataclass(frozen=True)
class Upload:
    """Images of a body, base64 not yet decoded, or the `url` of one; and unchecked fields."""

    images: Sequence[bytes | str]
    fields: dict[str, Any] = field(default_factory=dict)
    url: str | None = None


def decode_base64(image: bytes | str) -> bytes:
    """Returns an image, decoded if it is base64 or a data URL. Raises MalformedBody."""
    if isinstance(image, bytes):
        if _ENCODED.match(image) is None:
            return image
        image = image.decode("latin-1").strip()
    prefix = DATA_URL.match(image)
    text = image if prefix is None else image[prefix.end() :]
    return _decode_base64(text, "The image must be standard base64, padded with '='")


def _decode_base64(text: bytes | str, reason: str) -> bytes:
    try:
        encoded = text.encode("ascii") if isinstance(text, str) else text
        return base64.b64decode(encoded.replace(b"\r", b"").replace(b"\n", b""), validate=True)
    except ValueError as error:
        raise MalformedBody(reason) from error


async def read_upload(request: Request, shape: UploadShape, served: ServedPipeline) -> Upload:
    """Reads the body of a request. Raises the errors of `Body`, and RequestError if invalid."""
    body = Body(request, served.settings)
    content_type = request.headers.get("content-type", "")
    media_type = read_media_type(content_type)
    if media_type == MULTIPART:
        return await read_form(body, content_type, shape)
    if media_type == JSON:
        return _read_json(await read_json(body, served), shape)
    length = request.headers.get("content-length", "0")
    if not media_type and length == "0" and "transfer-encoding" not in request.headers:
        raise errors.MissingField(shape.image_field)
    if media_type.startswith("image/") or media_type in _UNNAMED:
        encoding = request.headers.get("content-transfer-encoding")
        content = await body.read()
        if _NO_IMAGE.match(content) is None:
            return Upload([_decode_content(content, encoding, "body")])
    raise errors.UnsupportedMediaType(f"{MULTIPART}, {RAW_IMAGE}, {JSON}")


async def read_form(chunks: AsyncIterator[bytes], content_type: str, shape: UploadShape) -> Upload:
    """Reads a `multipart/form-data` body. Raises RequestError at the first part over a limit."""
    form = _Form((shape.image_field,), shape.fields, shape.max_images)
    await form.read(chunks, content_type)
    return Upload(form.images[shape.image_field], read_texts(form.texts, "body"))


async def read_examples(request: Request, settings: Settings) -> tuple[list[bytes], list[bytes]]:
    """Reads a form with 1 to 200 photos in `positive` and `negative`. Raises as `read_form`."""
    content_type = request.headers.get("content-type", "")
    if read_media_type(content_type) != MULTIPART:
        raise errors.UnsupportedMediaType(MULTIPART)
    form = _Form(("positive", "negative"), (), MAX_EXAMPLES)
    await form.read(Body(request, settings), content_type)
    return form.images["positive"], form.images["negative"]


class _Form:
    """The parts of a form by name: some clients send images without filename, or texts with one."""

    def __init__(
        self, image_fields: Sequence[str], text_fields: Collection[str], max_images: int
    ) -> None:
        self.images: dict[str, list[bytes]] = {name: [] for name in image_fields}
        self.texts: dict[str, list[str]] = defaultdict(list)
        self._text_fields = text_fields
        self._max_images = max_images
        self._name = ""
        self._encoding: str | None = None
        # Most images come in one piece, which is not copied.
        self._pieces: list[bytes | bytearray] = []
        self._length = 0

    async def read(self, chunks: AsyncIterator[bytes], content_type: str) -> None:
        """Reads all parts; without `texts`, at least one of them must be an image."""
        boundary = parse_options_header(content_type)[1].get("boundary")
        if not boundary:
            raise MalformedBody("The multipart Content-Type must have a boundary")
        try:
            await self._parse(chunks, boundary)
        except MultipartError as error:
            raise MalformedBody("The multipart body is malformed, or its end is missing") from error
        if not _count(self.images) and _TEXTS_FIELD not in self._text_fields:
            raise errors.MissingField(next(iter(self.images)))
        CALLER.get().count_photos(_count(self.images))

    async def _parse(self, chunks: AsyncIterator[bytes], boundary: str) -> None:
        # Latin-1 decodes any byte: a filename, which is ignored, may be in any encoding.
        parser = PushMultipartParser(boundary, header_charset="latin-1")
        async for chunk in chunks:
            for event in parser.parse(chunk):
                if isinstance(event, MultipartSegment):
                    self._begin_part(event)
                elif event is not None:
                    self._add(event)
                else:
                    self._end_part()
        parser.close()

    def _begin_part(self, part: MultipartSegment) -> None:
        name = part.name.encode("latin-1").decode("utf-8", "replace")
        self._name, self._pieces, self._length = name, [], 0
        self._encoding = part.header("Content-Transfer-Encoding")
        if part.header("Content-Encoding", "identity").strip().lower() != "identity":
            raise errors.UnsupportedContentEncoding
        if name in self.images:
            if _count(self.images) == self._max_images:
                raise errors.TooManyImages(self._max_images)
            return
        if name not in self._text_fields:
            known = (*self.images, *self._text_fields)
            raise errors.UnknownField(name, errors.describe_unknown(name, known))
        if _count(self.texts) == MAX_TEXT_PARTS:
            raise MalformedBody(f"The form has more than {MAX_TEXT_PARTS} text fields")

    def _add(self, piece: bytes | bytearray) -> None:
        self._length += len(piece)
        if self._length > MAX_TEXT_BYTES and self._name not in self.images:
            raise errors.BodyTooLarge("A text field", MAX_TEXT_BYTES)
        self._pieces.append(piece)

    def _end_part(self) -> None:
        place = f"part {quote(self._name)}"
        content = _decode_content(b"".join(self._pieces), self._encoding, place)
        if self._name in self.images:
            self.images[self._name].append(content)
        else:
            self.texts[self._name].append(content.decode("utf-8", NOT_UTF8))


def _count(parts: Mapping[str, Sequence[bytes | str]]) -> int:
    return sum(map(len, parts.values()))


def _decode_content(content: bytes, header: str | None, place: str) -> bytes:
    """Decodes the content of a `place` by its Content-Transfer-Encoding."""
    encoding = (header or "binary").strip().lower()
    if encoding not in _TRANSFER_ENCODINGS:
        raise MalformedBody(
            f"The Content-Transfer-Encoding {quote(encoding)} of the {place} must be one of "
            f"{', '.join(_TRANSFER_ENCODINGS)}, or left out"
        )
    if encoding == "quoted-printable":
        return binascii.a2b_qp(content)
    if encoding == "base64":
        promise = "is not the base64 that its Content-Transfer-Encoding promises"
        return _decode_base64(content, f"The {place} {promise}")
    return content


def _read_json(fields: dict[str, Any], shape: UploadShape) -> Upload:
    known = [shape.image_field, *shape.fields]
    if not shape.batch:
        known.append(_URL_FIELD)
    for name in fields:
        if name not in known:
            raise errors.UnknownField(name, errors.describe_unknown(name, known))
    if _URL_FIELD in fields:
        if shape.image_field in fields:
            raise MalformedBody(f"Give '{shape.image_field}' or '{_URL_FIELD}', not both")
        url = fields.pop(_URL_FIELD)
        if not isinstance(url, str):
            raise MalformedBody(f"Field '{_URL_FIELD}' must be a text")
        return Upload([], fields, url)
    return Upload(_take_images(fields, shape), fields)


def _take_images(fields: dict[str, Any], shape: UploadShape) -> list[bytes | str]:
    name = shape.image_field
    images: Any = []
    if name in fields:
        value = fields.pop(name)
        images = value if shape.batch else [value]
    if not (isinstance(images, list) and all(isinstance(image, str) for image in images)):
        kind = "a list of base64 texts" if shape.batch else "a base64 text"
        raise MalformedBody(f"Field '{name}' must be {kind}")
    if not images and _TEXTS_FIELD not in shape.fields:
        raise errors.MissingField(name)
    count_images(images, shape.max_images)
    return images


def count_images(images: Sequence[object], limit: int) -> None:
    """Counts the images of a request for its rate. Raises TooManyImages or RateLimited."""
    if len(images) > limit:
        raise errors.TooManyImages(limit)
    CALLER.get().count_photos(len(images))
