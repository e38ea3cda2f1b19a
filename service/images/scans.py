"""The scans of a JPEG: how many there are, where the last one ends, and whether it is whole."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator

from PIL import Image

from service.errors import InvalidImage

BASELINE = frozenset({0xC0, 0xC1})
"""Markers of sequential frames with Huffman codes; progressive ones take longer."""
PROGRESSIVE = 0xC2  # with Huffman codes
ARITHMETIC = frozenset({0xC9, 0xCA})
"""Markers of sequential and progressive frames with arithmetic codes."""
START_OF_SCAN = 0xDA
# Real files have far fewer. Files with more are made to keep a decoder busy: each scan of a
# progressive JPEG goes over the whole picture.
MAX_SEGMENTS = 1000
_MAX_SCANS = 50

_RESTART_INTERVAL = 0xDD
_END_OF_IMAGE = 0xD9
_END = b"\xff\xd9"
# Markers with a length, and the end.
_MARKER = re.compile(rb"\xff[\x02-\xcf\xd9-\xfe]")
# In a scan 0xFF is followed by 0, or by a restart if the file has restarts.
_SCAN_END = re.compile(rb"\xff[^\0\xff]")
_SCAN_END_WITH_RESTARTS = re.compile(rb"\xff[^\0\xff\xd0-\xd7]")

_COEFFICIENTS = 64  # of a block
_ALL = bytes([0, _COEFFICIENTS - 1, 0])  # the first, the last, and their precision
_CODES = b"\xfe" * 8 + bytes(number**3 % 251 for number in range(4096))
_RESTARTS = [bytes([0xFF, number]) for number in range(0xD0, 0xD8)]
# Filler scan data, longer than any missing block.
_MORE_DATA = _CODES + b"".join(restart + _CODES[:512] for restart in _RESTARTS)
_NO_DATA = 128  # the value of samples that are missing


def check_scans(data: bytes) -> None:
    """Raises InvalidImage if a JPEG has too many scans or segments."""
    if data.count(b"\xff\xda") <= _MAX_SCANS:
        return
    # After the end of the picture, a phone may append a video.
    if sum(marker == START_OF_SCAN for marker, _, _ in _walk_scans(data)) > _MAX_SCANS:
        raise InvalidImage(detail="The JPEG has too many scans.")


def trim_jpeg(data: bytes, *, is_suspect: bool = False) -> bytes:
    """Returns a JPEG up to its last scan, which it checks, and an end marker.

    The file is returned as it is if the marker follows the scan or scans are missing, unless it
    `is_suspect`; and if its codes are arithmetic. Otherwise the check decodes the picture twice.
    Raises InvalidImage if the last scan ends early, or scans of a suspect file are missing.
    """
    end = _find_end(data)
    if not is_suspect and (end is None or data.startswith(_END, end)):
        return data
    if end is None:
        if any(marker in ARITHMETIC for marker, _, _ in _walk_scans(data)):
            return data
        raise InvalidImage(detail="The JPEG has too few scans.")
    picture = data[:end].rstrip(b"\xff")  # half of a marker, or of an escaped 0xFF
    if _decode_half(picture + _END) != _decode_half(picture + _MORE_DATA + _END):
        # The pixels of a whole picture do not depend on what follows.
        raise InvalidImage(detail="The JPEG ends early.")
    return picture + _END


def looks_cut(image: Image.Image) -> bool:
    """Returns whether the last pixel of a decoded JPEG is grey, as if its data were missing.

    If an end marker follows a scan that ends early, Pillow gives no error and no warning. Of a
    progressive JPEG, this finds only cuts in the first scans.
    """
    corner = image.crop((image.width - 1, image.height - 1, image.width, image.height))
    return all(abs(sample - _NO_DATA) <= 1 for sample in corner.tobytes())


def _walk_scans(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields marker, start and end of each segment, up to the end marker."""
    position = 2
    for _ in range(MAX_SEGMENTS):
        found = _MARKER.search(data, position)
        marker = data[found.end() - 1] if found is not None else _END_OF_IMAGE
        if found is None or marker == _END_OF_IMAGE or len(data) < found.end() + 2:
            return
        (length,) = struct.unpack_from(">H", data, found.end())
        position = found.end() + length
        yield marker, found.start(), position
    raise InvalidImage(detail="The JPEG has too many segments.")


def _find_end(data: bytes) -> int | None:
    """Returns the end of the scan that completes the picture.

    Returns None if scans are missing, or the codes are arithmetic: zeros may follow them unwritten.
    """
    missing: dict[int, set[int]] = {}  # components, and the coefficients that they lack
    scan_end, is_progressive = _SCAN_END, False
    for marker, start, end in _walk_scans(data):
        content = data[start + 4 : end]
        if marker in BASELINE or marker == PROGRESSIVE:
            is_progressive = marker == PROGRESSIVE
            missing = {component: set(range(_COEFFICIENTS)) for component in content[6::3]}
        elif marker == _RESTART_INTERVAL and any(content):
            scan_end = _SCAN_END_WITH_RESTARTS
        elif marker == START_OF_SCAN and missing:
            first, last, precision = content[-3:].rjust(3, b"\0") if is_progressive else _ALL
            if not precision & 0xF:  # it is the full one
                for component in content[1:-3:2]:
                    missing.get(component, set()).difference_update(range(first, last + 1))
            if not any(missing.values()):
                found = scan_end.search(data, end)
                return len(data) if found is None else found.start()
    return None


def _decode_half(data: bytes) -> Image.Image:
    """Decodes at half the size, in a quarter of the memory; missing data changes it, too."""
    image = Image.open(io.BytesIO(data), formats=("JPEG",))
    image.draft(None, (max(image.width // 2, 1), max(image.height // 2, 1)))
    image.load()
    return image
