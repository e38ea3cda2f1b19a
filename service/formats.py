"""Formats: which kinds of file are decoded, and how the others are told from junk.

In: the beginning of a file. Out: the name of a format that is known but not read, or nothing.
HEIC and AVIF are read where the extra `heif` is installed. Next: `images.py`, which hands
`FORMATS` to Pillow: what is not in it is never decoded.
"""

from __future__ import annotations

from PIL import AvifImagePlugin, features

_ALWAYS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_MAGIC = (
    (b"%PDF", "PDF"),
    (b"8BPS", "PSD"),
    (b"%!PS", "EPS"),
    (b"\xc5\xd0\xd3\xc6", "EPS"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\1\0", "ICO"),
)
# Brands of the ISO container, bytes 8 to 12. `mif1` and `msf1` may hold either.
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"})
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_SNIFFED_BYTES = 1024


def _find_formats() -> tuple[str, ...]:
    try:
        import pillow_heif
    except ImportError:
        return _ALWAYS
    # One photo, one thread: photos are decoded side by side. Nothing but the picture is read.
    pillow_heif.register_heif_opener(
        decode_threads=1, thumbnails=False, depth_images=False, aux_images=False
    )
    if not features.check("avif"):
        return (*_ALWAYS, "HEIF")
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    return (*_ALWAYS, "HEIF", "AVIF")


FORMATS = _find_formats()
"""Pillow's names of the formats that are read."""


def name_unread_format(data: bytes) -> str | None:
    """Returns the name of a format that is known but not read; None for everything else."""
    head = data[:_SNIFFED_BYTES]
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    container = name_container(data)
    if container is not None and container not in FORMATS:
        return container
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith((b"<svg", b"<?xml", b"<!--", b"<!DOCTYPE svg")) and b"<svg" in text:
        return "SVG"
    return None


def name_container(data: bytes) -> str | None:
    """Returns `HEIF` or `AVIF` by the brand of an ISO container, None for other files."""
    if data[4:8] != b"ftyp":
        return None
    if data[8:12] in _AVIF_BRANDS:
        return "AVIF"
    return "HEIF" if data[8:12] in _HEIC_BRANDS else None
