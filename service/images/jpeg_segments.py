"""The segments of a JPEG: its metadata taken out, its headers walked through, its scans counted.

In: the bytes of a JPEG, possibly damaged. Out: what a decoder needs of it, and the EXIF block. A
hostile block can claim gigabytes of tags, and Pillow parses all of them as soon as it opens a JPEG,
so `split_jpeg` takes it out before. Next: `exif.py`, which reads the orientation from it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from service.errors import InvalidImage
from service.images.exif import EXIF_HEADER

START_OF_SCAN = 0xDA
_FILL = 0xFF  # may stand before any marker
_END_OF_IMAGE = 0xD9
# With no length behind them: a stuffed byte, TEM, restarts, starts and ends of images. No camera
# writes them into a header, and decoders pass over most of them, each to what stands behind it.
_BARE = frozenset({0x00, 0x01, *range(0xD0, 0xDA)})
# Those with a length behind them, and the end: in a scan 0xFF is followed by 0 or by a restart.
_MARKER = re.compile(rb"\xff[\x02-\xcf\xd9-\xfe]")
_APP1 = 0xE1
_MOST_SEGMENTS = 1000
# Pillow needs JFIF (APP0) and Adobe (APP14) to tell the colours; the rest is metadata.
_METADATA_MARKERS = frozenset({*range(0xE1, 0xEE), 0xEF, 0xFE})


def split_jpeg(data: bytes) -> tuple[bytes, bytes]:
    """Takes the metadata out of a JPEG.

    Args:
        data: a JPEG file, possibly damaged; what cannot be followed is left as it is.

    Returns:
        The JPEG without its metadata segments, and its first EXIF block (or nothing).
    """
    kept = [data[:2]]
    exif, end = b"", 2
    for marker, start, end in walk_segments(data):
        if marker not in _METADATA_MARKERS:
            kept.append(data[start:end])
        elif marker == _APP1 and not exif and data.startswith(EXIF_HEADER, start + 4):
            exif = data[start + 4 : end]
    kept.append(data[end:])
    return b"".join(kept), exif


def walk_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields marker, start and end of each segment of a JPEG, up to the head of its first scan.

    A decoder finds the same segments, or an error.

    Args:
        data: a JPEG file, possibly damaged; the walk ends where it cannot be followed.

    Raises:
        InvalidImage: there are more segments than any camera or editor writes.
    """
    position = 2
    walked = 0
    while data[position : position + 1] == b"\xff" and len(data) >= position + 4:
        if walked == _MOST_SEGMENTS:
            raise InvalidImage("too many segments")
        walked += 1
        marker = data[position + 1]
        if marker == _FILL:
            position += 1
            continue
        (length,) = struct.unpack_from(">H", data, position + 2)
        if marker in _BARE or length < 2:
            break
        end = position + 2 + length
        yield marker, position, end
        if marker == START_OF_SCAN:
            break
        position = end


def count_scans(data: bytes) -> int:
    """Counts the scans of a JPEG, up to its end: behind it a phone may keep a film of the moment.

    Args:
        data: a JPEG file, possibly damaged; the count ends where it cannot be followed.

    Raises:
        InvalidImage: there are more segments than any camera or editor writes.
    """
    position, scans = 2, 0
    for _ in range(_MOST_SEGMENTS):
        found = _MARKER.search(data, position)
        marker = data[found.end() - 1] if found is not None else _END_OF_IMAGE
        if found is None or marker == _END_OF_IMAGE or len(data) < found.end() + 2:
            return scans
        scans += marker == START_OF_SCAN
        (length,) = struct.unpack_from(">H", data, found.end())
        position = found.end() + length
    raise InvalidImage("too many segments")
