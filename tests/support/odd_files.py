"""Files that are odd and fine, each with a usual file of the same pixels; and damaged files."""

import random
import struct
import zlib
from functools import cache

import numpy as np
from PIL import Image

from tests.support.photos import CAMERA_TURNS, encode_picture, make_exif, make_picture

END = b"\xff\xd9"
_MIB = 2**20
_PICTURE = make_picture(5, 90, 50)  # neither side is a multiple of a JPEG's blocks
_ENDING = 12  # bytes of a PNG's last chunk
_INTEGERS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i"}
JPEGS = {
    "baseline": encode_picture(_PICTURE, "JPEG", quality=98),
    "progressive": encode_picture(_PICTURE, "JPEG", quality=98, progressive=True),
    "grey": encode_picture(_PICTURE.convert("L"), "JPEG", quality=98),
    "print": encode_picture(_PICTURE.convert("CMYK"), "JPEG", quality=98),
    "restarts": encode_picture(_PICTURE, "JPEG", quality=98, restart_marker_blocks=7),
}


def make_chunk(name: bytes, content: bytes, checksum: int | None = None) -> bytes:
    body = name + content
    checksum = zlib.crc32(body) if checksum is None else checksum
    return struct.pack(">I", len(content)) + body + struct.pack(">I", checksum)


def put_into_png(png: bytes, *chunks: bytes) -> bytes:
    """Puts chunks after the header of a PNG."""
    header = 8 + 25  # signature and IHDR
    return png[:header] + b"".join(chunks) + png[header:]


def make_trailer(size: int) -> bytes:
    """Returns what a phone may append: 4 bytes, then anything, with markers and other ends."""
    return b"\0\1\2\3" + random.Random(0).randbytes(size)


def make_orientation(kind: int, order: str, orientation: int = 6, count: int = 1) -> bytes:
    """Returns an EXIF block whose orientation has one of TIFF's types; `order` is `<` or `>`."""
    magic = {"<": b"II*\0", ">": b"MM\0*"}[order]
    entry = struct.pack(order + "HHHI", 1, 0x0112, kind, count)
    value = struct.pack(order + _INTEGERS[kind], orientation).ljust(4, b"\0")
    return magic + struct.pack(order + "I", 8) + entry + value + bytes(4)


def make_bmp(alpha: int) -> bytes:
    """Returns a BMP of 32 bits with a mask for alpha, which is the same everywhere."""
    picture = _PICTURE.convert("RGBA")
    picture.putalpha(alpha)
    pixels = picture.transpose(Image.Transpose.FLIP_TOP_BOTTOM).tobytes("raw", "BGRA")
    masks = struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    sizes = struct.pack("<IiiHHII", 108, *picture.size, 1, 32, 3, len(pixels))
    header = (sizes + bytes(16) + masks).ljust(108, b"\0")
    return b"BM" + struct.pack("<III", 122 + len(pixels), 0, 122) + header + pixels


@cache
def make_odd_files(trailer_size: int = 200_000) -> dict[str, tuple[bytes, bytes]]:
    """Returns odd files by name, each with a usual file of the same pixels."""
    trailer = make_trailer(trailer_size)
    files: dict[str, tuple[bytes, bytes]] = {}
    for name, jpeg in JPEGS.items():
        files[f"{name} JPEG without end"] = jpeg[:-2], jpeg
        files[f"{name} JPEG with half an end"] = jpeg[:-1], jpeg
        files[f"{name} JPEG without end, trailer"] = jpeg[:-2] + trailer, jpeg
        files[f"{name} JPEG without end, another JPEG"] = jpeg[:-2] + JPEGS["grey"], jpeg
        files[f"{name} JPEG, trailer"] = jpeg + trailer, jpeg
    return files | _make_odd_pngs() | _make_keyed_pngs() | _make_odd_turns() | {
        "BMP whose alpha is 0": (make_bmp(0), encode_picture(_PICTURE)),
        "BMP whose alpha is 255": (make_bmp(255), encode_picture(_PICTURE)),
    }  # fmt: skip


def _make_odd_pngs() -> dict[str, tuple[bytes, bytes]]:
    png = encode_picture(_PICTURE)
    long = zlib.compress(bytes(11 * _MIB // 10))
    chunks = {
        "long ICC profile": make_chunk(b"iCCP", b"x\0\0" + long),
        "long zTXt": make_chunk(b"zTXt", b"x\0\0" + long),
        "long iTXt": make_chunk(b"iTXt", b"x\0\1\0\0\0" + long),
        "text of 70 MiB": make_chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(_MIB))) * 70,
        "compression that does not exist": make_chunk(b"zTXt", b"x\0\7"),
        **{
            f"wrong checksum in {name.decode()}": make_chunk(name, b"x\0y", checksum=7)
            for name in (b"tEXt", b"prVt", b"eXIf")
        },
        **{
            f"short {name.decode()}": make_chunk(name, b"")
            for name in (b"pHYs", b"gAMA", b"cHRM", b"sRGB", b"acTL", b"fcTL")
        },
    }
    files = {f"PNG, {name}": (put_into_png(png, chunk), png) for name, chunk in chunks.items()}
    late = png[:-_ENDING] + chunks["long zTXt"] + png[-_ENDING:]
    return files | {"PNG, late text": (late, png), "PNG without end": (png[:-_ENDING], png)}


def _make_keyed_pngs() -> dict[str, tuple[bytes, bytes]]:
    """Grey and RGB of every depth with a transparent colour, and the same pixels on white.

    In 16 bits, other pixels differ from the transparent colour in one byte only.
    """
    files = {}
    for kind, channels, depths in (("grey", 1, (1, 2, 4, 8, 16)), ("RGB", 3, (8, 16))):
        for depth in depths:
            largest = 2**depth - 1
            picture = np.asarray(_PICTURE.convert("RGB" if channels == 3 else "L"), np.uint16)
            samples = picture.reshape(50, 90, channels) * 257 >> 16 - depth
            key = np.full(channels, largest // 3, np.uint16)
            samples[20:30] = key
            samples[30:35] = key ^ 1
            samples[35:40, :, -1] = key[-1] ^ 1 << depth - 1
            bytes_of_sample = 2 if depth == 16 else 1
            bits = np.unpackbits(samples.astype(f">u{bytes_of_sample}").view(np.uint8), axis=-1)
            bits = bits.reshape(50, -1, 8 * bytes_of_sample)[..., -depth:]
            rows = np.packbits(bits.reshape(50, -1), axis=-1)
            plain = (samples >> 8 if depth == 16 else samples * (255 // largest)).astype(np.uint8)
            plain[(samples == key).all(axis=-1)] = 255
            usual = encode_picture(Image.fromarray(plain.squeeze()))
            header = struct.pack(">IIBBBBB", 90, 50, depth, channels - 1, 0, 0, 0)
            pixels = zlib.compress(np.insert(rows, 0, 0, axis=1).tobytes())
            first = b"\x89PNG\r\n\x1a\n" + make_chunk(b"IHDR", header)
            last = make_chunk(b"IDAT", pixels) + make_chunk(b"IEND", b"")
            chunk = make_chunk(b"tRNS", key.astype(">u2").tobytes())
            files[f"PNG, transparent colour, {kind} of {depth} bits"] = first + chunk + last, usual
            if depth < 16:
                files[f"PNG, transparent colour out of range, {kind} of {depth} bits"] = (
                    first + make_chunk(b"tRNS", (key + 2**depth).astype(">u2").tobytes()) + last,
                    usual,
                )
    late = make_chunk(b"tRNS", bytes(6))
    black = encode_picture(Image.new("RGB", (90, 50)))
    ending = black[-_ENDING:]
    files["PNG, transparent colour after the pixels"] = black[:-_ENDING] + late + ending, black
    return files


def _make_odd_turns() -> dict[str, tuple[bytes, bytes]]:
    turn = CAMERA_TURNS[6]
    assert turn is not None
    stored = _PICTURE.transpose(turn)
    files = {}
    for file_format in ("JPEG", "PNG", "WEBP"):
        usual = encode_picture(stored, file_format, exif=make_exif(6))
        for kind in _INTEGERS:
            for order in "<>":
                exif = b"Exif\0\0" + make_orientation(kind, order)
                odd = encode_picture(stored, file_format, exif=exif)
                files[f"{file_format}, orientation of type {kind}, {order}"] = odd, usual
    return files


@cache
def make_cut_files(trailer_size: int = 200_000) -> dict[str, bytes]:
    """Returns JPEGs whose last 1,000 bytes are gone, by name."""
    trailer = make_trailer(trailer_size)
    files: dict[str, bytes] = {}
    for name, jpeg in JPEGS.items():
        cut = jpeg[:-1000]
        files[f"{name} JPEG cut"] = cut
        files[f"{name} JPEG cut, trailer"] = cut + trailer
        if name != "progressive":  # without its last scans it is coarse, not cut
            files[f"{name} JPEG cut, end"] = cut + END
            files[f"{name} JPEG cut, end, trailer"] = cut + END + trailer
    return files


def make_damaged_pngs() -> dict[str, bytes]:
    """Returns PNGs with a wrong checksum in a chunk of the picture, by the chunk's name."""
    palette = encode_picture(_PICTURE.quantize(16), transparency=0)
    files = {}
    for name in (b"IHDR", b"PLTE", b"tRNS", b"IDAT"):
        start = palette.index(name)
        (length,) = struct.unpack_from(">I", palette, start - 4)
        end = start + 4 + length
        files[name.decode()] = palette[:end] + b"\0\0\0\7" + palette[end + 4 :]
    return files


def make_dense_webp(width: int, height: int) -> bytes:
    """Returns a lossless WebP, transparent everywhere: 28 bytes, whatever its size."""
    # Signature, both sides less 1, alpha, version 0; no transform, no cache, one group of codes.
    fields = [(0x2F, 8), (width - 1, 14), (height - 1, 14), (1, 1), (0, 3), (0, 3)]
    # Five codes of one symbol, 0: no pixel takes a bit.
    fields += [(1, 4)] * 5
    bits = length = 0
    for value, count in fields:
        bits |= value << length
        length += count
    stream = bits.to_bytes(-(-length // 8), "little")
    stream += bytes(len(stream) % 2)
    chunk = b"VP8L" + struct.pack("<I", len(stream)) + stream
    return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk
