"""The multipart reader: chunks of a body -> its parts, in memory, within limits.

In: the bytes of a `multipart/form-data` body as they arrive. Out: image parts and text
parts. It stops at the first part too many, so a hostile form costs no more than a small
one. Next: `uploads.py`, which counts the bytes and knows the fields of each route.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.http.request_errors import (
    BodyTooLarge,
    MalformedBody,
    RepeatedField,
    TooManyImages,
    UnknownField,
)

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_TEXT_BYTES = 4096
MAX_TEXT_PARTS = 2048


@dataclass(frozen=True)
class FormShape:
    """The parts that a route takes.

    Attributes:
        image_field: name of the parts that hold images.
        max_images: how many of those.
        single_fields: text fields that may be given once.
        list_fields: text fields that may be repeated.
    """

    image_field: str
    max_images: int
    single_fields: frozenset[str]
    list_fields: frozenset[str]

    @property
    def names(self) -> tuple[str, ...]:
        """Every known field, the image's first."""
        return (self.image_field, *sorted(self.single_fields | self.list_fields))


@dataclass
class Form:
    """A form as it was read.

    Attributes:
        images: contents of the image parts, in order.
        texts: text field -> its values, in order.
    """

    images: list[bytearray] = field(default_factory=list)
    texts: dict[str, list[bytearray]] = field(default_factory=dict)


async def read_multipart(chunks: AsyncIterator[bytes], content_type: str, shape: FormShape) -> Form:
    """Reads a whole `multipart/form-data` body.

    Args:
        chunks: the body as it arrives; whoever yields it counts the bytes.
        content_type: the request's Content-Type, with its boundary.
        shape: the fields of the route.

    Raises:
        RequestError: the body is malformed, or has an unknown part, or parts too many or
            too large.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise MalformedBody("The multipart Content-Type names no boundary")
    collector = _PartCollector(shape)
    try:
        parser = MultipartParser(boundary, collector.callbacks())
        async for chunk in chunks:
            parser.write(chunk)
        parser.finalize()
    except FormParserError as error:
        raise MalformedBody("The multipart body is malformed") from error
    if not collector.ended:
        raise MalformedBody("The multipart body ends before its closing boundary")
    return collector.form


class _PartCollector:
    """Receives the parser's events and fills a `Form`."""

    def __init__(self, shape: FormShape) -> None:
        self.form = Form()
        self.ended = False
        self._shape = shape
        self._text_parts = 0
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._disposition = b""
        self._content = bytearray()
        self._is_text = False

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin_part,
            "on_header_field": self._add_header_name,
            "on_header_value": self._add_header_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._open_part,
            "on_part_data": self._add_content,
            "on_end": self._end,
        }

    def _begin_part(self) -> None:
        self._disposition = b""

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _open_part(self) -> None:
        # The name decides what a part is, not its filename or its Content-Type: clients
        # send images without a filename, and texts with one.
        raw_name = parse_options_header(self._disposition)[1].get(b"name")
        if raw_name is None:
            raise MalformedBody("A multipart part has no name")
        name = raw_name.decode("utf-8", errors="replace")
        self._content = bytearray()
        self._is_text = name != self._shape.image_field
        if self._is_text:
            self._open_text(name)
        else:
            self._open_image()

    def _open_image(self) -> None:
        if len(self.form.images) == self._shape.max_images:
            raise TooManyImages(self._shape.max_images)
        self.form.images.append(self._content)

    def _open_text(self, name: str) -> None:
        if name not in self._shape.names:
            raise UnknownField(name, self._shape.names)
        if name in self._shape.single_fields and name in self.form.texts:
            raise RepeatedField(name)
        self._text_parts += 1
        if self._text_parts > MAX_TEXT_PARTS:
            raise MalformedBody(f"The form has more than {MAX_TEXT_PARTS} text fields")
        self.form.texts.setdefault(name, []).append(self._content)

    def _add_content(self, data: bytes, start: int, end: int) -> None:
        if self._is_text and len(self._content) + end - start > MAX_TEXT_BYTES:
            raise BodyTooLarge(MAX_TEXT_BYTES, "A text field")
        self._content += data[start:end]

    def _end(self) -> None:
        self.ended = True
