"""JPEG: the header, EXIF's orientation, where the last scan ends, and a decoder.

libjpeg-turbo and OpenCV's resize take two thirds of Pillow's time. The pixels differ from Pillow's
by 0.5 of 255 in the mean over real photos; by 2.2 if the photo is large and decoded at reduced
size. Two of Pillow's own filters differ by 2.7.
"""

import io
import math
import re
import struct
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from service.bundle.card import Interpolation
from service.errors import InvalidImage

try:
    import cv2
    import simplejpeg
except ImportError:  # the extra `fast` is not installed
    AVAILABLE = False
else:
    AVAILABLE = True
    cv2.setNumThreads(1)  # photos are decoded in parallel

UPRIGHT = 1
ORIENTATION_TAG = 0x0112
# The format of each of TIFF's integer types; most writers use 3, some 4 or 1.
_INTEGERS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i"}
_TEXT = 2
_TIFF_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_EXIF_HEADER = b"Exif\0\0"

# Markers of frames: sequential ones with Huffman codes, progressive ones, which take longer, and
# both with arithmetic codes.
_BASELINE, _PROGRESSIVE, _ARITHMETIC = frozenset({0xC0, 0xC1}), 0xC2, frozenset({0xC9, 0xCA})
_START_OF_SCAN, _RESTART_INTERVAL, _END_OF_IMAGE = 0xDA, 0xDD, 0xD9
START_OF_IMAGE, _END = b"\xff\xd8", b"\xff\xd9"
# Real files have far fewer. Files with more are made to keep a decoder busy: each scan of a
# progressive JPEG goes over the whole picture.
_MAX_SEGMENTS = 1000
_MAX_SCANS = 50

# Markers with a length, and the end. In a header, one follows the segment before it, after any
# number of fill bytes, and its length is at least 2. No camera writes anything else there, such as
# a restart, and decoders disagree on the bytes that follow.
_MARKER = re.compile(rb"\xff[\x02-\xcf\xd9-\xfe]")
_HEADER_MARKER = re.compile(rb"\xff++[\x02-\xcf\xd9-\xfe](?!\0[\0\1])")
# In a scan 0xFF is followed by 0, or by a restart if the file has restarts.
_SCAN_END = re.compile(rb"\xff[^\0\xff]")
_SCAN_END_WITH_RESTARTS = re.compile(rb"\xff[^\0\xff\xd0-\xd7]")

_ALL = bytes([0, 63, 0])  # the first and the last coefficient of a block, and their precision
_CODES = b"\xfe" * 8 + bytes(number**3 % 251 for number in range(4096))
_RESTARTS = [bytes([0xFF, number]) for number in range(0xD0, 0xD8)]
# Filler scan data, longer than any missing block.
_MORE_DATA = _CODES + b"".join(restart + _CODES[:512] for restart in _RESTARTS)
_NO_DATA = 128  # the value of samples that are missing

# The frames that simplejpeg may decode. It allocates the scaled size, and libjpeg-turbo does not
# scale a lossless JPEG: it would write past the end of the buffer.
_SCALED = _BASELINE | {_PROGRESSIVE}
# Frames that no decoder reads or scales. All begin with bits, height, width and components.
_UNREAD = {
    **dict.fromkeys((0xC3, 0xCB), "lossless JPEG"),
    **dict.fromkeys((0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF, 0xDE), "hierarchical JPEG"),
    0xF7: "JPEG-LS",
}
_FRAMES = _SCALED | _ARITHMETIC | _UNREAD.keys()
_DEFINE_LINES = b"\xff\xdc\0\4"  # a segment after the first scan that has the height

_APP1 = 0xE1
# Pillow needs JFIF (APP0) and Adobe (APP14) for the colours; the rest is metadata.
_METADATA = frozenset({*range(0xE1, 0xEE), 0xEF, 0xFE})

_MAX_QUICK = 2 * 2**20  # bytes, and pixels

# A JPEG of at least this many times the wanted size is decoded at n/8 of its size, but at no less
# than this many times the wanted size.
_OVERSAMPLING = 1.5
# Above it, interpolation between neighbours skips pixels.
_MAX_DOUBLED = 2.5


class Jpeg(NamedTuple):
    """A JPEG file and its header; a header that is not understood has 0 in all numbers."""

    data: bytes
    frame: int  # the marker of its first frame
    bits: int  # of a sample
    width: int  # stored, before EXIF's orientation
    height: int
    components: int  # 1 grey, 3 colour, 4 print (CMYK, YCCK)
    is_quick: bool  # decodes within about 10 ms: baseline, at most 2 Mi pixels and 2 MiB
    exif: bytes  # the first block, or empty
    kept: tuple[slice, ...]  # the parts of `data` that are not metadata

    def find_unread_kind(self) -> str | None:
        """Returns the name of a kind of JPEG that is not decoded, else None."""
        if self.frame in _UNREAD:
            return _UNREAD[self.frame]
        if self.bits not in (0, 8):
            return f"JPEG of {self.bits} bits a sample"
        if self.components not in (0, 1, 3, 4):
            return f"JPEG of {self.components} components"
        if self.frame and not self.height and _DEFINE_LINES in self.data:
            return "JPEG with its height after the picture (DNL)"
        return None

    def strip(self) -> bytes:
        """Returns the file without metadata: Pillow may parse gigabytes. Or InvalidImage."""
        data = b"".join([self.data[part] for part in self.kept])
        # After the end of the picture, a phone may append a video.
        if data.count(b"\xff\xda") > _MAX_SCANS and (
            sum(marker == _START_OF_SCAN for marker, _, _ in _walk_segments(data)) > _MAX_SCANS
        ):
            raise InvalidImage(detail="The JPEG has too many scans.")
        return data


def parse_jpeg(data: bytes) -> Jpeg | None:
    """Reads the header; None if no JPEG. Raises InvalidImage if it has too many segments."""
    if not data.startswith(START_OF_IMAGE):
        return None
    kept, end = [slice(0, 2)], 2
    exif = frame = scan = b""
    for marker, start, end in _walk_segments(data, _HEADER_MARKER.match):
        if marker in _METADATA:
            if marker == _APP1 and not exif and data.startswith(_EXIF_HEADER, start + 4):
                exif = data[start + 4 : end]
            continue
        kept.append(slice(start, end))
        if marker in _FRAMES:
            frame = frame or data[start:end]  # decoders refuse a second one
        elif marker == _START_OF_SCAN:
            scan = data[start:end]
            break
    kept.append(slice(end, None))
    if not scan or len(frame) < 10:
        return Jpeg(data, 0, 0, 0, 0, 0, False, exif, tuple(kept))
    bits, height, width, components = struct.unpack_from(">BHHB", frame, 4)
    is_quick = (
        max(len(data), height * width) <= _MAX_QUICK
        and frame[1] in _BASELINE
        and frame[9:10] == scan[4:5]  # the first scan has all components: it is the only one
    )
    return Jpeg(data, frame[1], bits, width, height, components, is_quick, exif, tuple(kept))


def read_orientation(exif: bytes) -> int:
    """Returns EXIF's orientation, 1 to 8; upright if the block is malformed."""
    value = read_tags(exif.removeprefix(_EXIF_HEADER), {ORIENTATION_TAG}).get(ORIENTATION_TAG)
    return value if isinstance(value, int) and 1 <= value <= 8 else UPRIGHT


def read_tags(tiff: bytes, wanted: Collection[int]) -> dict[int, int | bytes | None]:
    """Returns the first of each wanted tag: one integer, a text's first 8 bytes, or None.

    Of a file that ends early, it returns the tags before the end.
    """
    tags: dict[int, int | bytes | None] = {}
    order = _TIFF_ORDERS.get(tiff[:4])
    if order is None:
        return tags
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (entries,) = struct.unpack_from(f"{order}H", tiff, start)
        for position in range(start + 2, start + 2 + entries * 12, 12):
            tag, kind, count = struct.unpack_from(f"{order}HHI", tiff, position)
            if tag not in wanted or tag in tags:
                continue
            tags[tag] = None
            if kind in _INTEGERS and count == 1:
                (tags[tag],) = struct.unpack_from(order + _INTEGERS[kind], tiff, position + 8)
            elif kind == _TEXT:
                (text,) = struct.unpack_from(f"{order}I", tiff, position + 8)
                tags[tag] = tiff[text : text + 8]
    except struct.error:
        pass
    return tags


def shrink_jpeg(
    photo: Jpeg, width: int, height: int, interpolation: Interpolation
) -> NDArray[np.uint8] | None:
    """Decodes to RGB uint8 [height, width, 3]; None if Pillow has to. InvalidImage if it is cut.

    `interpolation` is any but `nearest`.
    """
    is_scaled = photo.frame in _SCALED and photo.bits == 8 and photo.components in (1, 3)
    if not (AVAILABLE and is_scaled):
        return None
    data = photo.strip()
    least_height, least_width = (math.ceil(_OVERSAMPLING * side) for side in (height, width))
    decode = partial(simplejpeg.decode_jpeg, min_height=least_height, min_width=least_width)
    try:
        pixels = decode(data, "RGB")
    except ValueError:  # the decoder warns: something is missing, or follows the picture
        try:
            pixels = decode(trim_jpeg(data, is_suspect=True), "RGB", strict=False)
        except ValueError:
            return None
    eighths = ((-(-photo.height * n // 8), -(-photo.width * n // 8), 3) for n in range(8, 0, -1))
    if pixels.shape not in eighths:
        raise InvalidImage(f"a JPEG of another size: {pixels.shape}")
    if pixels.shape[0] < height or pixels.shape[1] < width:
        return None
    times = max(pixels.shape[0] / height, pixels.shape[1] / width)
    if 1 < times <= _MAX_DOUBLED:
        # Interpolating to twice the size, then averaging 2 x 2 pixels, takes half the time of a
        # mean over areas of any size. It is also nearer to Pillow's filter.
        smooth = cv2.INTER_LINEAR if interpolation == "bilinear" else cv2.INTER_CUBIC
        pixels = cv2.resize(pixels, (2 * width, 2 * height), interpolation=smooth)
    return np.asarray(cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


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
        if any(marker in _ARITHMETIC for marker, _, _ in _walk_segments(data)):
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


def _walk_segments(
    data: bytes, find: Callable[[bytes, int], re.Match[bytes] | None] = _MARKER.search
) -> Iterator[tuple[int, int, int]]:
    """Yields marker, start and end of each segment, up to the end marker; scans are skipped."""
    position = 2
    for _ in range(_MAX_SEGMENTS):
        match = find(data, position)
        marker = data[match.end() - 1] if match is not None else _END_OF_IMAGE
        if match is None or marker == _END_OF_IMAGE or len(data) < match.end() + 2:
            return
        (length,) = struct.unpack_from(">H", data, match.end())
        position = match.end() + length
        yield marker, match.end() - 2, position
    raise InvalidImage(detail="The JPEG has too many segments.")


def _find_end(data: bytes) -> int | None:
    """Returns the end of the scan that completes the picture.

    Returns None if scans are missing, or the codes are arithmetic: zeros may follow them unwritten.
    """
    missing: dict[int, set[int]] = {}  # components, and the coefficients that they lack
    scan_end, is_progressive = _SCAN_END, False
    for marker, start, end in _walk_segments(data):
        content = data[start + 4 : end]
        if marker in _BASELINE or marker == _PROGRESSIVE:
            is_progressive = marker == _PROGRESSIVE
            missing = {component: set(range(64)) for component in content[6::3]}
        elif marker == _RESTART_INTERVAL and any(content):
            scan_end = _SCAN_END_WITH_RESTARTS
        elif marker == _START_OF_SCAN and missing:
            first, last, precision = content[-3:].rjust(3, b"\0") if is_progressive else _ALL
            if not precision & 0xF:  # it is the full one
                for component in content[1:-3:2]:
                    missing.get(component, set()).difference_update(range(first, last + 1))
            if not any(missing.values()):
                match = scan_end.search(data, end)
                return len(data) if match is None else match.start()
    return None


def _decode_half(data: bytes) -> Image.Image:
    """Decodes at half the size, in a quarter of the memory; missing data changes it, too."""
    image = Image.open(io.BytesIO(data), formats=("JPEG",))
    image.draft(None, (max(image.width // 2, 1), max(image.height // 2, 1)))
    image.load()
    return image
