"""PNG: keeps the chunks that make the picture; damage in the others does not stop other readers."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from service.errors import InvalidImage

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Without the chunks of an animation, readers show its still picture.
_PICTURE = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})
_EXIF = b"eXIf"
_MAX_EXIF_BYTES = 64 * 1024  # a JPEG's limit
_OVERHEAD = 12  # bytes of a chunk's length, name and checksum
# Real files have far fewer; each costs some Python.
_MAX_CHUNKS = 10_000


def parse_png(data: bytes) -> tuple[bytes, bytes] | None:
    """Returns a PNG without metadata, and its EXIF block or b""; None if the file is not a PNG.

    An EXIF block that is damaged or longer than 64 KiB is ignored.

    Raises:
        InvalidImage: the picture has a wrong checksum, or the file has too many chunks.
    """
    if not data.startswith(_SIGNATURE):
        return None
    kept: list[bytes | memoryview] = [_SIGNATURE]
    exif = b""
    for name, chunk in _walk_chunks(data):
        if name in _PICTURE:
            kept.append(chunk)
            if not _has_checksum(chunk):
                raise InvalidImage(detail=f"The PNG's {name.decode()} has a wrong checksum.")
        elif name == _EXIF and len(chunk) <= _MAX_EXIF_BYTES and _has_checksum(chunk):
            exif = exif or bytes(chunk[8:-4])
    return b"".join(kept), exif


def _walk_chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yields name and bytes of each chunk up to IEND; the last one may be cut."""
    view, position = memoryview(data), len(_SIGNATURE)
    for _ in range(_MAX_CHUNKS):
        if len(data) < position + 8:
            return
        length, name = struct.unpack_from(">I4s", data, position)
        end = position + length + _OVERHEAD
        yield name, view[position:end]
        if name == b"IEND":
            return
        position = end
    raise InvalidImage(detail="The PNG has too many chunks.")


def _has_checksum(chunk: memoryview) -> bool:
    """Returns whether a chunk has the right checksum; True if it is cut, as Pillow finds that."""
    (length,) = struct.unpack_from(">I", chunk)
    if len(chunk) < length + _OVERHEAD:
        return True
    return zlib.crc32(chunk[4:-4]) == int.from_bytes(chunk[-4:])
