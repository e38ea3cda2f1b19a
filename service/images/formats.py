"""File formats: decoded (HEIC and AVIF with the extra `heif`), only known; names of photos."""

import importlib.util
import os
import re
from itertools import chain

from PIL import AvifImagePlugin, features

from service.errors import quote
from service.images.jpeg import read_tags

_ALWAYS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_MAGIC = {
    "RAW of Canon (CR2)": (b"II*\0\x10\0\0\0CR",),
    "RAW of Canon (CRW)": (b"II\x1a\0\0\0HEAPCCDR",),
    "RAW of Fujifilm (RAF)": (b"FUJIFILMCCD-RAW",),
    "RAW of Minolta (MRW)": (b"\0MRM",),
    "RAW of Olympus (ORF)": (b"IIRO", b"IIRS", b"MMOR"),
    "RAW of Panasonic (RW2)": (b"IIU\0",),
    "RAW of Sigma (X3F)": (b"FOVb",),
    "PDF": (b"%PDF",),
    "PSD": (b"8BPS",),
    "EPS": (b"%!PS", b"\xc5\xd0\xd3\xc6"),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    "JPEG XR": (b"II\xbc",),
    "JPEG 2000": (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"),
    "JPEG XL": (b"\0\0\0\x0cJXL ", b"\xff\x0a"),
    "ICO": (b"\0\0\1\0",),
    "PNG for iOS (CgBI)": (b"\x89PNG\r\n\x1a\n\0\0\0\4CgBI",),
    "MNG": (b"\x8aMNG",),
    "JNG": (b"\x8bJNG",),
    "QOI": (b"qoif",),
    "OpenEXR": (b"\x76\x2f\x31\x01",),
}
_RAW_TIFF = {  # by the tag Make
    b"NIKON": "RAW of Nikon (NEF)",
    b"PENTAX": "RAW of Pentax (PEF)",
    b"RICOH": "RAW of Pentax (PEF)",
    b"SAMSUNG": "RAW of Samsung (SRW)",
    b"SONY": "RAW of Sony (ARW)",
}
_SUBFILE, _PHOTOMETRIC, _MAKE, _DNG_VERSION = _RAW_TAGS = 0x00FE, 0x0106, 0x010F, 0xC612
_SENSOR = 32803  # photometric interpretation: a colour a pixel
_TEXTS = {  # by the first bytes, in lower case
    rb"version https://git-lfs": "a pointer of Git LFS: run git lfs pull",
    rb"<!doctype html|<html": "a web page (HTML): download the photo itself",
    rb"data:image/|/9j/|ivborw0kggo|uklgr|r0lgod": "base64: decode it first",
    rb"\0+\Z": "zeros, at least at its start: copy it again",
    rb"[\t-\r -~\x80-\xbf\xc2-\xf4]{20,}\Z": "a text: open it in an editor",
}
# Brands of the ISO container, bytes 8 to 12. `mif1` and `msf1` may hold either.
_HEIC_BRANDS = frozenset(b"heic heix heim heis hevc hevx hevm hevs mif1 msf1".split())
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_SNIFFED_BYTES = 1024
_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a")
_ENDINGS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".insp"),
    "PNG": (".png", ".apng"),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
    "HEIF": (".heic", ".heif", ".hif"),
    "AVIF": (".avif",),
}
RAW_ENDINGS = {
    *(".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dng", ".gpr", ".iiq", ".mrw", ".nef"),
    *(".nrw", ".orf", ".pef", ".raf", ".rw2", ".rwl", ".srw", ".x3f"),
}
HAS_RAW = importlib.util.find_spec("rawpy") is not None
_ALL_ENDINGS = frozenset(chain.from_iterable(_ENDINGS.values()))
PICTURE_ENDINGS = _ALL_ENDINGS | RAW_ENDINGS | {".tif", ".tiff", ".psd", ".jxl", ".jp2"}
"""Of pictures, decoded or not."""

# Anything else is not an ending, as in `2024.05 at the sea`.
_SHORT_ENDING = re.compile(r"\.[a-z0-9]{1,10}")
_OVERLAY = re.compile(r"\.map-\d+-[\w-]*\.jpg")
# Other characters may have a meaning in a path.
_UNSAFE = re.compile(r"[^\w-]+")


def _find_formats() -> tuple[str, ...]:
    try:
        import pillow_heif
    except ImportError:
        return _ALWAYS
    # One thread a photo: photos are decoded in parallel.
    pillow_heif.register_heif_opener(
        decode_threads=1, thumbnails=False, depth_images=False, aux_images=False
    )
    if not features.check("avif"):
        return (*_ALWAYS, "HEIF")
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    # In this order: pillow-heif opens AVIF too, and fails only when it decodes.
    return (*_ALWAYS, "AVIF", "HEIF")


FORMATS = _find_formats()
"""Pillow's names of the formats that are decoded."""

ENDINGS = tuple(ending for name in FORMATS for ending in _ENDINGS[name])


def is_photo_name(name: str) -> bool | None:
    """Returns whether a file is a photo by its ending; None: its content decides (`.heic`)."""
    ending = os.path.splitext(name)[1].lower()
    if name.startswith("."):
        return False
    if ending in ENDINGS:
        return True
    if ending in RAW_ENDINGS:
        return HAS_RAW
    return None if ending in _ALL_ENDINGS or not _SHORT_ENDING.fullmatch(ending) else False


def is_overlay_name(name: str) -> bool:
    """Returns whether `make_overlay_name` made the name."""
    return _OVERLAY.search(name) is not None


def describe_kind(name: str) -> str:
    """Describes a file that is not a photo: its ending, and the extra that would decode it."""
    ending = os.path.splitext(name)[1].lower()
    if name.startswith("."):
        return "hidden"
    if not _SHORT_ENDING.fullmatch(ending):
        return "without ending"
    if ending in RAW_ENDINGS:
        return f"{ending}: needs the extra raw"
    return f"{ending}: needs the extra heif" if ending in _ALL_ENDINGS else ending


def starts_photo(start: bytes) -> bool:
    """Returns whether a file is decoded, by its first 12 bytes; BMP's 2 bytes do not count."""
    return (
        start.startswith(_STARTS)
        or (start[:4] == b"RIFF" and start[8:12] == b"WEBP")
        or find_container(start) in FORMATS
    )


def make_overlay_name(photo: str, rank: int, label: str) -> str:
    """Returns the file name of a label's map: `dog.jpg.map-1-cat.jpg`."""
    return f"{photo}.map-{rank}-{_UNSAFE.sub('_', label)[:80]}.jpg"


def find_unsupported_format(data: bytes) -> str | None:
    """Returns the name of a known format that is not decoded, else None."""
    head = data[:_SNIFFED_BYTES]
    for name, starts in _MAGIC.items():
        if head.startswith(starts):
            return _name_tiff(data) if name == "TIFF" else name
    container = find_container(data)
    if container is not None and container not in FORMATS:
        return container
    if data[4:12] == b"ftypcrx ":
        return "RAW of Canon (CR3)"
    if container is None and data[4:8] == b"ftyp":  # a film, or a picture with another codec
        return f"ISO media {quote(data[8:12].decode('latin-1'))}"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith((b"<svg", b"<?xml", b"<!--", b"<!DOCTYPE svg")) and b"<svg" in text:
        return "SVG"
    return None


def describe_other(data: bytes) -> str | None:
    """Returns a sentence about a file that is no image: a text, a web page, zeros; else None."""
    head = data[:_SNIFFED_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return next((f"It is {kind}." for key, kind in _TEXTS.items() if re.match(key, head)), None)


def _name_tiff(data: bytes) -> str:
    tags = read_tags(data[:65_536], _RAW_TAGS)
    make = tags.get(_MAKE)
    if _DNG_VERSION in tags:
        return "RAW (DNG)"
    # The first picture of a developed TIFF is whole; that of a RAW file is small, or the sensor's.
    is_part = tags.get(_SUBFILE) == 1 or tags.get(_PHOTOMETRIC, _SENSOR) == _SENSOR
    start = make.upper() if is_part and isinstance(make, bytes) else b""
    return next((name for key, name in _RAW_TIFF.items() if start.startswith(key)), "TIFF")


def find_container(data: bytes) -> str | None:
    """Returns `HEIF` or `AVIF` by the brand of an ISO container, else None."""
    if data[4:8] != b"ftyp":
        return None
    if data[8:12] in _AVIF_BRANDS:
        return "AVIF"
    return "HEIF" if data[8:12] in _HEIC_BRANDS else None
