"""Photos of the user's own folders; of a RAW file its preview, by rawpy. HTTP takes no RAW."""

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from service.errors import UnsupportedImage
from service.images.folders import read_photo
from service.images.formats import FORMATS, HAS_RAW, find_unsupported_format
from service.images.jpeg import ORIENTATION_TAG, parse_jpeg

_NO_EXTRA = "it needs the extra raw (pip install -e '.[raw]'), or export it as JPEG"
_MIN_SIDE = 1000  # pixels of the longer side; smaller previews are thumbnails
_MAX_BYTES = 2**29
_ORIENTATIONS = "12435867"  # EXIF's, by LibRaw's `flip`
_turns = threading.Semaphore(2)  # RAW files have up to 200 MB


def load_photo(
    path: str | Path, max_bytes: int = -1, read: Callable[[Any, int], bytes] = read_photo
) -> bytes:
    """Returns `read(path, max_bytes)`, or the preview of a RAW file; or raises UnsupportedImage."""
    data = read(path, max_bytes)
    kind = find_unsupported_format(data) or ""
    if not kind.startswith("RAW"):
        return data
    if not HAS_RAW:
        raise UnsupportedImage(kind, FORMATS, _NO_EXTRA)
    with _turns:
        preview = _read_preview(read(path, _MAX_BYTES) if len(data) == max_bytes else data)
    jpeg = parse_jpeg(preview)
    if jpeg is None or max(jpeg.width, jpeg.height) < _MIN_SIDE:
        step = f"no preview of {_MIN_SIDE} pixels or more can be read in it, export it as JPEG"
        raise UnsupportedImage(kind, FORMATS, step)
    return preview


def _read_preview(data: bytes) -> bytes:
    """Returns a JPEG, or nothing; LibRaw adds an EXIF block with the orientation if it has none."""
    import rawpy

    try:
        with rawpy.imread(io.BytesIO(data)) as raw:
            preview = raw.extract_thumb().data
            if isinstance(preview, bytes):
                return preview
            picture, exif = io.BytesIO(), Image.Exif()  # else uint8 [H, W, 3], as stored
            exif[ORIENTATION_TAG] = int(_ORIENTATIONS[raw.sizes.flip & 7])
            Image.fromarray(preview).save(picture, "JPEG", quality=95, exif=exif)
            return picture.getvalue()
    except (rawpy.LibRawError, NotImplementedError, OSError, TypeError, ValueError):
        return b""
