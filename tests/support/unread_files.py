"""Whole files of kinds that are not decoded, and JPEGs of every process."""

import random
import struct
import zlib

from tests.support.odd_files import JPEGS, make_bmp, make_chunk
from tests.support.photos import encode_picture, make_picture

FRAMES = (0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)
"""The markers of all starts of frames: SOF0 to SOF15."""


def make_segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def make_jpeg(frame: int, size: tuple[int, int], components: int = 3, bits: int = 8) -> bytes:
    """Returns a JPEG with any start of frame.

    A lossless one is grey. An arithmetic one is noise, and longer than a block that Pillow reads.
    Others have the codes of a lossless one, which are wrong for them.
    """
    width, height = size
    numbers = range(1, components + 1)
    layout = b"".join(bytes([number, 0x11, 0]) for number in numbers)
    lossless = frame in (0xC3, 0xC7, 0xCB, 0xCF)
    scan = b"".join(bytes([number, 0]) for number in numbers)
    spectrum = (1, 0, 0) if lossless else (0, 0 if frame in (0xC2, 0xCA) else 63, 0)
    codes = bytes(width * height * components // 8 + 1)  # a bit 0 a sample: equal to the last one
    if frame in (0xC9, 0xCA):
        codes = random.Random(0).randbytes(100_000).replace(b"\xff", b"\xfe")
    return b"".join((
        b"\xff\xd8",
        make_segment(0xDB, bytes([0, *[16] * 64])),
        make_segment(frame, struct.pack(">BHHB", bits, height, width, components) + layout),
        make_segment(0xC4, bytes([0, 1, *[0] * 15, 0])),  # the code 0 means a difference of 0
        make_segment(0xC4, bytes([0x10, 1, *[0] * 15, 0])),
        make_segment(0xDA, bytes([components]) + scan + bytes(spectrum)),
        codes,
        b"\xff\xd9",
    ))  # fmt: skip


def _make_number_of_lines(jpeg: bytes) -> bytes:
    """Moves the height of a JPEG after its picture."""
    place = jpeg.index(b"\xff\xc0") + 5
    lines = make_segment(0xDC, jpeg[place : place + 2])
    return jpeg[:place] + b"\0\0" + jpeg[place + 2 : -2] + lines + jpeg[-2:]


def _change_masks(*masks: int) -> bytes:
    bmp = make_bmp(255)
    return bmp[:54] + struct.pack("<4I", *masks) + bmp[70:]


def _make_ios_png() -> bytes:
    png = encode_picture(make_picture(5).convert("RGBA"))
    packer = zlib.compressobj(wbits=-15)
    rows = packer.compress(zlib.decompress(png[41:-16])) + packer.flush()
    first = png[:8] + make_chunk(b"CgBI", b"P\0 \2") + png[8:33]
    return first + make_chunk(b"IDAT", rows) + png[-12:]


def make_unread_files() -> dict[str, tuple[bytes, str]]:
    """Returns files by name, each with its kind in the answer."""
    lossless, hierarchical = "lossless JPEG", "hierarchical JPEG"
    jpeg = JPEGS["baseline"]
    header = make_segment(0xDE, struct.pack(">BHHB", 8, 50, 90, 1) + bytes([1, 0x11, 0]))
    # Larger than a buffer of an eighth of its size, in every contract.
    files = {
        f"SOF{frame - 0xC0}": (make_jpeg(frame, (640, 400)), kind)
        for frames, kind in (
            ((0xC3, 0xCB), lossless),
            ((0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF), hierarchical),
        )
        for frame in frames
    }
    return files | {
        "grey lossless JPEG": (make_jpeg(0xC3, (640, 400), 1), lossless),
        "lossless JPEG of 16 bits": (make_jpeg(0xC3, (640, 400), 1, 16), lossless),
        "hierarchical JPEG": (jpeg[:2] + header + jpeg[2:], hierarchical),
        "JPEG of 12 bits": (make_jpeg(0xC1, (640, 400), 3, 12), "JPEG of 12 bits a sample"),
        "JPEG of 2 components": (make_jpeg(0xC0, (640, 400), 2), "JPEG of 2 components"),
        "JPEG of 5 components": (make_jpeg(0xC0, (640, 400), 5), "JPEG of 5 components"),
        "JPEG with DNL": (_make_number_of_lines(jpeg), "JPEG with its height after the picture"),
        "JPEG-LS": (make_jpeg(0xF7, (64, 48)), "JPEG-LS"),
        "PNG for iOS": (_make_ios_png(), "PNG for iOS (CgBI)"),
        "BMP in the order R-G-B": (_change_masks(0xFF, 0xFF00, 0xFF0000, 0), "BMP bitfields"),
        "BMP of 10 bits": (_change_masks(0x3FF00000, 0xFFC00, 0x3FF, 0), "BMP bitfields"),
        "BMP with a JPEG": (make_bmp(0)[:30] + b"\4\0\0\0" + make_bmp(0)[34:], "BMP compression"),
        "BMP of 2 bits": (make_bmp(0)[:28] + b"\2\0" + make_bmp(0)[30:], "BMP pixel depth"),
        "JPEG XR": (b"II\xbc\1" + bytes(99), "JPEG XR"),
        "JPEG 2000 without its container": (b"\xff\x4f\xff\x51" + bytes(99), "JPEG 2000"),
    }  # fmt: skip
