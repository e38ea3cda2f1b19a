"""HEIC files whose picture is made of others; needs the extra `heif`."""

import struct
from collections.abc import Iterator

from tests.support.photos import encode_picture, make_picture


def make_box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content) + 8, kind) + content


def make_full_box(kind: bytes, content: bytes, version: int = 0) -> bytes:
    return make_box(kind, struct.pack(">I", version << 24) + content)


def _walk(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    while data:
        size, kind = struct.unpack_from(">I4s", data)
        yield kind, data[8:size]
        data = data[size:]


def make_grid(
    tiles: int, tile: tuple[int, int], size: tuple[int, int], *, references: tuple[int, ...] = ()
) -> bytes:
    """Returns a HEIC of up to 256 tiles in a row, all of them the same coded picture.

    The picture is item 2 and its tile is item 1, unless `references` name others.
    """
    boxes = dict(_walk(encode_picture(make_picture(1, *tile), "HEIF", quality=10)))
    meta = dict(_walk(boxes[b"meta"][4:]))
    properties = dict(_walk(dict(_walk(meta[b"iprp"]))[b"ipco"]))
    payload, grid = boxes[b"mdat"], bytes([0, 1, 0, tiles - 1]) + struct.pack(">II", *size)
    first = struct.pack(">HH4sx", 1, 0, b"hvc1")
    second = struct.pack(">HH4sx", 2, 0, b"grid")
    parts = references or (1,) * tiles
    sizes = [make_full_box(b"ispe", struct.pack(">II", *each)) for each in (tile, size)]
    codec = make_box(b"hvcC", properties[b"hvcC"])
    linked = struct.pack(">IHBBBHBB", 2, 1, 2, 0x81, 2, 2, 1, 3)
    head = make_box(b"ftyp", b"heic\0\0\0\0mif1heic")

    def make_meta(start: int) -> bytes:
        places = struct.pack(">HHHII", 1, 0, 1, start, len(payload))
        places += struct.pack(">HHHII", 2, 0, 1, start + len(payload), len(grid))
        return make_full_box(b"meta", b"".join((
            make_full_box(b"hdlr", bytes(4) + b"pict" + bytes(13)),
            make_full_box(b"pitm", struct.pack(">H", 2)),
            make_full_box(b"iloc", struct.pack(">HH", 0x4400, 2) + places),
            make_full_box(b"iinf", struct.pack(">H", 2) + make_full_box(b"infe", first, 2)
                          + make_full_box(b"infe", second, 2)),
            make_full_box(b"iref", make_box(b"dimg", struct.pack(
                f">HH{len(parts)}H", 2, len(parts), *parts))),
            make_box(b"iprp", make_box(b"ipco", codec + b"".join(sizes))
                     + make_full_box(b"ipma", linked)),
        )))  # fmt: skip

    start = len(head) + len(make_meta(0)) + 8
    return head + make_meta(start) + make_box(b"mdat", payload + grid)
