"""TIFF files of any tags, and a DNG that LibRaw opens."""

import struct

Tags = dict[int, str | tuple[int, ...]]


def make_tiff(tags: Tags, at: int = 8) -> bytes:
    """Returns a directory of texts and 32-bit numbers for the place `at`; after a header at 8."""
    head, values = struct.pack("<H", len(tags)), b""
    end = at + 2 + 12 * len(tags) + 4
    for tag, value in sorted(tags.items()):
        text = f"{value}\0".encode()
        data = text if isinstance(value, str) else struct.pack(f"<{len(value)}I", *value)
        kind, count = (2, len(text)) if isinstance(value, str) else (4, len(value))
        place = struct.pack("<I", end + len(values)) if len(data) > 4 else data.ljust(4, b"\0")
        values += data if len(data) > 4 else b""
        head += struct.pack("<HHI", tag, kind, count) + place
    return b"II*\0\x08\0\0\0" * (at == 8) + head + bytes(4) + values


def make_dng(preview: bytes, size: tuple[int, int], orientation: int, compression: int) -> bytes:
    """Returns a DNG of 64 x 64 samples with a preview: JPEG (compression 7) or RGB (1)."""

    def lay_out(sensor: int, start: int) -> tuple[bytes, bytes]:
        shown: Tags = {
            254: (1,), 256: size[:1], 257: size[1:], 258: (8, 8, 8), 259: (compression,),
            262: (6 if compression == 7 else 2,), 271: "Maker", 272: "Model", 273: (start,),
            274: (orientation,), 277: (3,), 279: (len(preview),), 330: (sensor,), 50706: (1025,),
        }  # fmt: skip
        seen: Tags = {
            254: (0,), 256: (64,), 257: (64,), 258: (16,), 259: (1,), 262: (32803,),
            273: (start + len(preview),), 277: (1,), 279: (8192,),
        }  # fmt: skip
        return make_tiff(shown), make_tiff(seen, sensor)

    first, second = lay_out(9, 0)
    first, second = lay_out(len(first), len(first) + len(second))
    return first + second + preview + b"\xe8\x03" * 4096
