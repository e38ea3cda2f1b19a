"""PNG: drops ancillary chunks; other readers ignore damage there.

The transparent colour is read here, because Pillow compares samples after it has scaled them.
"""

import io
import struct
import zlib
from collections.abc import Iterator

from PIL import Image, ImageChops, ImageFile

from service.errors import InvalidImage

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Without the chunks of an animation, readers show its still picture.
_PICTURE = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})
# After the pixels, and a second time, readers ignore them.
_BEFORE_PIXELS = frozenset({b"PLTE", b"tRNS"})
_MAX_EXIF_BYTES = 64 * 1024  # a JPEG's limit
_OVERHEAD = 12  # bytes of a chunk's length, name and checksum
# Real files have far fewer; each costs some Python.
_MAX_CHUNKS = 10_000
# Pillow's raw modes of grey: the largest sample, and the factor that scales it to 8 bits.
_SCALES = {"1": (1, 255), "L;2": (3, 85), "L;4": (15, 17)}


def parse_png(data: bytes) -> tuple[bytes, bytes] | None:
    """Returns a PNG without metadata, and EXIF up to 64 KiB; None if no PNG; or InvalidImage."""
    if not data.startswith(_SIGNATURE):
        return None
    kept: list[bytes | memoryview] = [_SIGNATURE]
    exif = b""
    seen: set[bytes] = set()
    for name, chunk in _walk_chunks(data):
        if name in _BEFORE_PIXELS and not seen.isdisjoint({name, b"IDAT"}):
            continue
        seen.add(name)
        if name in _PICTURE:
            kept.append(chunk)
            if not _has_checksum(chunk):
                raise InvalidImage(detail=f"The PNG's {name.decode()} has a wrong checksum.")
        elif name == b"eXIf" and len(chunk) <= _MAX_EXIF_BYTES and _has_checksum(chunk):
            exif = exif or bytes(chunk[8:-4])
    return b"".join(kept), exif


def make_transparent(image: ImageFile.ImageFile, data: bytes) -> None:
    """Corrects the transparent colour of an opened PNG; 16-bit RGB is decoded, and white there."""
    raw_mode, key = image.tile[0].args, image.info.get("transparency")
    if key is None:
        return
    if raw_mode in _SCALES:
        largest, factor = _SCALES[raw_mode]
        # From the file: of 1 bit, Pillow keeps only whether the number is 0.
        low_byte = next(chunk[9] for name, chunk in _walk_chunks(data) if name == b"tRNS")
        image.info["transparency"] = (low_byte & largest) * factor
    elif raw_mode == "RGB;16B":
        # Pillow decodes the high bytes. In the other byte order, it decodes the low ones.
        low = Image.open(io.BytesIO(data), formats=("PNG",))
        low.tile = [low.tile[0]._replace(args="RGB;16L")]
        mask = Image.new("L", image.size, 255)
        for picture, shift in ((image, 8), (low, 0)):
            for band, sample in zip(picture.split(), key, strict=True):
                wanted = sample >> shift & 0xFF
                same = band.point([255 * (value == wanted) for value in range(256)])
                mask = ImageChops.darker(mask, same)
        image.paste("white", mask=mask)
        del image.info["transparency"]


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
