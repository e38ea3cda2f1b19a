"""The multipart reader: chunks of a body -> its parts, in memory, within limits.

In: the bytes of a `multipart/form-data` body as they arrive. Out: image parts and text
parts. It stops at the first part too many, so a hostile form costs no more than a small
one. Next: `uploads.py`, which counts the bytes and knows the fields of each route.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from multipart import (
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
    parse_options_header,
)

from service.errors import (
    BodyTooLarge,
    MalformedBody,
    RepeatedField,
    TooManyImages,
    UnknownField,
)

MAX_TEXT_BYTES = 4096
MAX_TEXT_PARTS = 2048
_ANY_BYTES = "latin-1"


@dataclass(frozen=True)
class FormShape:
    """The parts that a route takes.

    Attributes:
        image_field: name of the parts that hold images.
        max_images: how many of those.
        single_fields: text fields that may be given once.
        list_fields: text fields that may be repeated.
        takes_list: whether the images are a list where they are JSON, be it of one.
    """

    image_field: str
    max_images: int
    single_fields: frozenset[str]
    list_fields: frozenset[str]
    takes_list: bool = False

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

    images: list[bytes] = field(default_factory=list)
    texts: dict[str, list[bytes]] = field(default_factory=dict)


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
    boundary = parse_options_header(content_type)[1].get("boundary")
    if not boundary:
        raise MalformedBody("The multipart Content-Type names no boundary")
    collector = _PartCollector(shape)
    try:
        # The name of a file, which nobody asks for, is in whatever its system writes names in.
        parser = PushMultipartParser(boundary, header_charset=_ANY_BYTES)
        async for chunk in chunks:
            for event in parser.parse(chunk):
                collector.take(event)
        parser.close()
    except MultipartError as error:
        raise MalformedBody("The multipart body is malformed, or its end is missing") from error
    return collector.form


class _PartCollector:
    """Takes the parser's events and fills a `Form`."""

    def __init__(self, shape: FormShape) -> None:
        self.form = Form()
        self._shape = shape
        self._text_parts = 0
        self._name = ""
        # Most images come in one piece, which then is never copied.
        self._pieces: list[bytes | bytearray] = []
        self._length = 0

    def take(self, event: MultipartSegment | bytes | bytearray | None) -> None:
        """Takes the head of a part, a piece of its content, or its end (None)."""
        if isinstance(event, MultipartSegment):
            self._open_part(event.name.encode(_ANY_BYTES).decode("utf-8", "replace"))
        elif event is None:
            self._close_part()
        else:
            self._add_piece(event)

    def _open_part(self, name: str) -> None:
        # The name decides what a part is, not its filename or its Content-Type: clients
        # send images without a filename, and texts with one.
        self._name, self._pieces, self._length = name, [], 0
        if name == self._shape.image_field:
            if len(self.form.images) == self._shape.max_images:
                raise TooManyImages(self._shape.max_images)
        else:
            self._check_text(name)

    def _check_text(self, name: str) -> None:
        if name not in self._shape.names:
            raise UnknownField(name, self._shape.names)
        if name in self._shape.single_fields and name in self.form.texts:
            raise RepeatedField(name)
        self._text_parts += 1
        if self._text_parts > MAX_TEXT_PARTS:
            raise MalformedBody(f"The form has more than {MAX_TEXT_PARTS} text fields")

    def _add_piece(self, piece: bytes | bytearray) -> None:
        self._length += len(piece)
        if self._length > MAX_TEXT_BYTES and self._name != self._shape.image_field:
            raise BodyTooLarge(MAX_TEXT_BYTES, "A text field")
        self._pieces.append(piece)

    def _close_part(self) -> None:
        content = b"".join(self._pieces)
        if self._name == self._shape.image_field:
            self.form.images.append(content)
        else:
            self.form.texts.setdefault(self._name, []).append(content)
