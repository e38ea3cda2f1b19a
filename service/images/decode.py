"""Bytes become pixels: sniff, check, decode, turn upright, flatten, resize.

In: a photo's file content. Out: a `DecodedImage` with uint8 [H, W, 3] RGB, the size that
the encoder wants. Read are the formats of `formats.py`, told apart by content; of an animation
the first frame; transparency lies on white; 16-bit samples keep their high byte. Every failure
is an `ImageError`. Next: `engine.py`, which runs the pixels.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from service.bundle.card import InputContract
from service.errors import ImageError, InvalidImage, TooManyPixels, UnsupportedImage
from service.images.exif import UPRIGHT, hide_exif, read_orientation
from service.images.formats import FORMATS, name_container, name_unread_format
from service.images.jpeg import read_size, shrink_jpeg
from service.images.jpeg_segments import count_scans, split_jpeg

PixelArray = NDArray[np.uint8]

_JPEG = b"\xff\xd8"

_RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
# EXIF orientation -> what turns the stored picture upright.
_UPRIGHT_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = frozenset({5, 6, 7, 8})

# Pillow's way decodes a JPEG far larger than the input at 1/2, 1/4 or 1/8 of its size, which is
# many times cheaper; the resize still gets this many pixels for each it makes.
_DRAFT_OVERSAMPLING = 2
# The centre crop looks at the middle only, so a strip longer than this is cut to it first;
# resized whole, a 1 x 65500 picture would need gigabytes.
_MAX_CROP_ASPECT = 8
# Real files need far less. More is made to keep a decoder busy: each scan of a progressive
# JPEG goes over the whole picture, and each PNG or GIF block costs several reads in Python.
_MAX_JPEG_SCANS = 50
_MAX_READS = 30_000


@dataclass(frozen=True, eq=False)
class DecodedImage:
    """A photo, ready for the encoder.

    Attributes:
        pixels: uint8 [H, W, 3], RGB, H and W as in the bundle's input contract.
        width: of the upright original, pixels.
        height: of the upright original, pixels.
    """

    pixels: PixelArray
    width: int
    height: int


class _MeteredFile(io.BytesIO):
    """A file in memory that gives up on a reader that reads too often."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._reads_left = _MAX_READS

    def read(self, size: int | None = -1, /) -> bytes:
        self._reads_left -= 1
        if self._reads_left < 0:
            raise InvalidImage("the file has too many parts")
        return super().read(size)


def decode_image(data: bytes, contract: InputContract, max_pixels: int) -> DecodedImage:
    """Decodes one photo and makes it the encoder's input.

    Args:
        data: the file's content; a declared type or a file name plays no part.
        contract: size and resizing that the model was trained for.
        max_pixels: most pixels (width x height), checked before anything is decoded.

    Raises:
        InvalidImage: no picture, or a damaged one.
        UnsupportedImage: a known format that is not read.
        TooManyPixels: over `max_pixels`.
    """
    try:
        exif, decoded = b"", None
        if data.startswith(_JPEG):
            data, exif = _split_jpeg(data)
            decoded = _decode_jpeg(data, exif, contract, max_pixels)
        return _decode_any(data, exif, contract, max_pixels) if decoded is None else decoded
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooManyPixels(max_pixels) from error
    except Exception as error:
        # Pillow's readers raise nearly every type there is on damaged files.
        raise InvalidImage(f"cannot decode: {type(error).__name__}") from error


def _decode_jpeg(
    data: bytes, exif: bytes, contract: InputContract, max_pixels: int
) -> DecodedImage | None:
    """Decodes a usual JPEG the short way, without Pillow; returns None for any other."""
    if contract.resize_mode != "squash" or contract.interpolation == "nearest":
        return None
    size = read_size(data)
    if size is None:
        return None
    _check_size(*size, max_pixels)
    orientation = read_orientation(exif)
    wanted = _turn((contract.width, contract.height), orientation)
    pixels = shrink_jpeg(data, *wanted, contract.interpolation)
    if pixels is None:
        return None
    if orientation != UPRIGHT:
        pixels = np.asarray(Image.fromarray(pixels).transpose(_UPRIGHT_TURNS[orientation]))
    return DecodedImage(pixels, *_turn(size, orientation))


def _decode_any(data: bytes, exif: bytes, contract: InputContract, max_pixels: int) -> DecodedImage:
    """Decodes any picture, Pillow's way."""
    image, orientation = _open(data, exif, max_pixels)
    size = _turn(image.size, orientation)
    _draft(image, contract, orientation)
    image = _flatten(image)
    if orientation != UPRIGHT:
        image = image.transpose(_UPRIGHT_TURNS[orientation])
    return DecodedImage(resize_image(image, contract), *size)


def _turn(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Returns what width and height are once the picture is upright, or the other way round."""
    return size[::-1] if orientation in _SIDEWAYS else size


def _split_jpeg(data: bytes) -> tuple[bytes, bytes]:
    data, exif = split_jpeg(data)
    # Where there are too few of these bytes in all, nobody has to look whose they are.
    if data.count(b"\xff\xda") > _MAX_JPEG_SCANS and count_scans(data) > _MAX_JPEG_SCANS:
        raise InvalidImage("the JPEG has too many scans")
    return data, exif


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise TooManyPixels(max_pixels)


def resize_image(image: Image.Image, contract: InputContract) -> PixelArray:
    """Resizes an upright RGB picture to uint8 [H, W, 3] by the contract's rule."""
    resample = _RESAMPLING[contract.interpolation]
    if contract.resize_mode == "squash":
        resized = image.resize((contract.width, contract.height), resample)
        return np.asarray(resized, np.uint8)
    image = _cut_strip(image)
    full_width, full_height = _scaled_size(image.size, contract)
    resized = image.resize((full_width, full_height), resample)
    left = round((full_width - contract.width) / 2)
    top = round((full_height - contract.height) / 2)
    pixels = np.asarray(resized, np.uint8)
    return pixels[top : top + contract.height, left : left + contract.width]


def _open(data: bytes, exif: bytes, max_pixels: int) -> tuple[Image.Image, int]:
    """Reads the header; returns the picture, not yet decoded, and its orientation."""
    unread = name_unread_format(data)
    if unread is not None:
        raise UnsupportedImage(unread, FORMATS)
    if name_container(data) is not None:
        data = hide_exif(data)
    image: Image.Image = Image.open(_MeteredFile(data), formats=FORMATS)
    _check_size(*image.size, max_pixels)
    if any(tile.codec_name == "bmp_rle" for tile in image.tile):  # type: ignore[attr-defined]
        # Pillow decodes these in Python, for seconds.
        raise UnsupportedImage("run-length encoded BMP", FORMATS)
    if image.format != "JPEG":
        image.load()  # a PNG may carry its EXIF block after the pixels
        exif = image.info.get("exif") or b""
    return image, read_orientation(exif)


def _draft(image: Image.Image, contract: InputContract, orientation: int) -> None:
    height, width = _draft_sides(contract)
    if orientation in _SIDEWAYS:
        height, width = width, height
    image.draft(None, (_DRAFT_OVERSAMPLING * width, _DRAFT_OVERSAMPLING * height))


def _draft_sides(contract: InputContract) -> tuple[int, int]:
    if contract.resize_mode == "squash":
        return contract.height, contract.width
    return _crop_frame(contract)


def _flatten(image: Image.Image) -> Image.Image:
    """Returns the first frame in RGB, transparent parts on white."""
    image.load()
    if image.mode.startswith("I"):  # 16-bit grey; Pillow's own conversion would clip it
        samples = np.asarray(image).astype(np.uint32)
        grey = (samples >> 8).clip(0, 255).astype(np.uint8)
        grey[samples == image.info.get("transparency", -1)] = 255
        image = Image.fromarray(grey)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        canvas = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(canvas, image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _cut_strip(image: Image.Image) -> Image.Image:
    width, height = image.size
    new_width = min(width, _MAX_CROP_ASPECT * height)
    new_height = min(height, _MAX_CROP_ASPECT * width)
    if (new_width, new_height) == (width, height):
        return image
    left, top = (width - new_width) // 2, (height - new_height) // 2
    return image.crop((left, top, left + new_width, top + new_height))


def _crop_frame(contract: InputContract) -> tuple[int, int]:
    """Returns the height and width that a picture has to cover before the centre crop."""
    return (
        math.floor(contract.height / contract.crop_pct),
        math.floor(contract.width / contract.crop_pct),
    )


def _scaled_size(size: tuple[int, int], contract: InputContract) -> tuple[int, int]:
    """Returns the smallest (width, height) of the same shape that covers the crop frame."""
    width, height = size
    frame_height, frame_width = _crop_frame(contract)
    if frame_height * width >= frame_width * height:
        return frame_height * width // height, frame_height
    return frame_width, frame_width * height // width
