"""HEIC and AVIF: counts the pixels that are decoded, by a file's boxes, and hides its EXIF items.

A picture may be made of others, as the tiles of a phone's photo are. Decoders decode one of these
as often as it is referenced: 2 kB took 8 s, and 10 kB would take minutes.
"""

import math
import re
import struct
from collections import defaultdict
from collections.abc import Iterator

# The property of a picture that has its size; the zeros are version and flags.
_SIZE = re.compile(rb"ispe\0{4}(.{8})", re.DOTALL)


def find_sizes(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields width and height of each picture: what is shown may be a part of a larger one."""
    for size in _SIZE.finditer(data):
        yield struct.unpack(">II", size[1])


def count_pixels(data: bytes) -> float:
    """Returns the pixels of the costliest picture with its parts; infinite for a loop of parts."""
    areas: dict[int, int] = {}
    parts: defaultdict[int, list[int]] = defaultdict(list)
    for kind, start, end in _walk_boxes(data, 0, len(data)):
        if kind != b"meta":
            continue
        for inner, begin, stop in _walk_boxes(data, start + 4, end):
            if inner == b"iprp":
                _read_areas(data, begin, stop, areas)
            elif inner == b"iref":
                _read_parts(data, begin, stop, parts)
    costs: dict[int, float] = {}

    def count(item: int) -> float:
        if item not in costs:
            costs[item] = math.inf  # until it is known: for a part of itself
            costs[item] = areas.get(item, math.inf) + sum(map(count, parts.get(item, ())))
        return costs[item]

    return max(map(count, [*areas, *parts]), default=0)


def hide_exif(data: bytes) -> bytes:
    """Renames EXIF items: properties turn the picture upright (ISO/IEC 23008-12, 6.5.10)."""
    for kind, start, end in _walk_boxes(data, 0, len(data)):
        if kind == b"meta":
            return data[:start] + data[start:end].replace(b"Exif", b"none") + data[end:]
    return data


def _walk_boxes(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yields the kind of each box, and start and end of its content."""
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        head = 8
        if size == 1:
            (size,), head = struct.unpack_from(">Q", data, start + 8), 16
        elif size == 0:
            size = end - start
        if size < head:
            return
        yield kind, start + head, min(start + size, end)
        start += size


def _read_areas(data: bytes, start: int, end: int, areas: dict[int, int]) -> None:
    """Adds the pixels of each item; of several sizes the largest."""
    boxes = {kind: (begin, stop) for kind, begin, stop in _walk_boxes(data, start, end)}
    properties = [
        math.prod(struct.unpack_from(">II", data, begin + 4)) if kind == b"ispe" else None
        for kind, begin, _ in _walk_boxes(data, *boxes.get(b"ipco", (0, 0)))
    ]
    for kind, begin, stop in _walk_boxes(data, start, end):
        if kind != b"ipma":
            continue
        box, position = memoryview(data)[begin:stop], 8  # more entries than it has raise
        version, flags, entries = struct.unpack_from(">B2xBI", box)
        for _ in range(entries):
            item, count = struct.unpack_from(">IB" if version else ">HB", box, position)
            position += 5 if version else 3
            indices = struct.unpack_from(f">{count}{'H' if flags & 1 else 'B'}", box, position)
            position += count * (2 if flags & 1 else 1)
            for index in indices:
                number = (index & (0x7FFF if flags & 1 else 0x7F)) - 1
                area = properties[number] if 0 <= number < len(properties) else None
                if area is not None:
                    areas[item] = max(area, areas.get(item, 0))


def _read_parts(data: bytes, start: int, end: int, parts: defaultdict[int, list[int]]) -> None:
    number = "I" if data[start] else "H"  # by the version
    width = struct.calcsize(number)
    for kind, begin, stop in _walk_boxes(data, start + 4, end):
        if kind == b"dimg":
            box = memoryview(data)[begin:stop]  # more parts than it has raise
            item, count = struct.unpack_from(f">{number}H", box)
            parts[item] += struct.unpack_from(f">{count}{number}", box, width + 2)
