"""Decodes photos to the encoder's pixels: check, decode, turn upright, flatten, resize.

Formats are recognised by content. The first frame counts, transparency becomes white, 16-bit
samples keep their high byte. Every failure is an `ImageError`.
"""

import io
import math
import mmap
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from service import errors
from service.bundle.card import InputContract
from service.images.formats import FORMATS, describe_other, find_container, find_unsupported_format
from service.images.heif import count_pixels, find_sizes, hide_exif
from service.images.jpeg import (
    UPRIGHT,
    Jpeg,
    looks_cut,
    parse_jpeg,
    read_orientation,
    shrink_jpeg,
    trim_jpeg,
)
from service.images.png import make_transparent, parse_png

PixelArray = NDArray[np.uint8]

_UPRIGHT_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Pillow decodes a JPEG far larger than the input at 1/2, 1/4 or 1/8 of its size; each side still
# has at least this many pixels for each that the resize makes.
_DRAFT_OVERSAMPLING = 2
_MAX_PADDED_SIDE = 4096  # pixels; the whole square of 1 x 65500 pixels takes 17 GB
# A longer strip is cut before the centre crop: resized whole, 1 x 65500 pixels need gigabytes.
_MAX_ASPECT = 8
# Pillow's resize takes up to 48 bytes for each column or row. Then the limits of libjpeg, libavif.
_MAX_SIDE, _MAX_JPEG_SIDE, _MAX_AVIF_SIDE = 65_535, 65_500, 32_768
# Pixels of a HEIC or AVIF file: a picture and its tiles are 2.2 times one, and 3.7 times with the
# HDR picture that phones derive from it and a gain map (`tmap`).
_MAX_TIMES_DECODED = 4
# Real files need far fewer; each block of a hostile PNG or GIF costs several reads in Python.
_MAX_READS = 30_000
# For a pixel: two RGBA pictures of libwebp, coefficients of a progressive JPEG.
_MAX_DECODER_BYTES = 8
_WEBP_PIXELS = 50_000_000


@dataclass(frozen=True, eq=False)
class DecodedImage:
    """The encoder's input, and the size of the upright original."""

    pixels: PixelArray  # uint8 [H, W, 3], RGB, H and W of the bundle's input contract
    width: int
    height: int


class _MeteredFile(io.BytesIO):
    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._reads_left = _MAX_READS

    def read(self, size: int | None = -1, /) -> bytes:
        self._reads_left -= 1
        if self._reads_left < 0:
            raise errors.InvalidImage(detail="The file has too many parts.")
        return super().read(size)


def decode_image(photo: bytes | Jpeg, contract: InputContract, max_pixels: int) -> DecodedImage:
    """Decodes a photo to the encoder's input.

    Raises InvalidImage (EmptyImage without bytes), UnsupportedImage for a known format that is not
    decoded, OutOfMemory, and TooManyPixels before decoding: more than `max_pixels` (width x
    height), or a side of more than 65,535 (65,500 of a JPEG, 32,768 of an AVIF).
    """
    if not photo:
        raise errors.EmptyImage
    try:
        if isinstance(photo, bytes):
            photo = parse_jpeg(photo) or photo
        if isinstance(photo, Jpeg):
            return _decode_jpeg(photo, contract, max_pixels)
        if unread := find_unsupported_format(photo):
            raise errors.UnsupportedImage(unread, FORMATS)
        data, exif = parse_png(photo) or (photo, b"")
        return _decode_by_pillow(data, exif, contract, max_pixels)
    except errors.ImageError:
        raise
    except Exception as error:
        raise _explain(error, max_pixels, photo) from error


def _explain(error: Exception, max_pixels: int, photo: bytes | Jpeg) -> errors.ServiceError:
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return errors.TooManyPixels(max_pixels, sys.maxsize)
    text, message = str(error).lower(), f"cannot decode: {type(error).__name__}"
    # libheif's "memory allocation error" may be a limit, or a size of 0.
    is_short = "memory" in text and "limit" not in text and "invalid" not in text
    if is_short or isinstance(error, MemoryError):
        return errors.OutOfMemory(message)
    # libjpeg and libwebp report a failed allocation as damage, so try to allocate as much. libwebp
    # fails before the size is known.
    pixels = _WEBP_PIXELS if "decoder object" in text else max_pixels
    try:
        mmap.mmap(-1, pixels * _MAX_DECODER_BYTES).close()
    except OSError:
        return errors.OutOfMemory(message)
    # Pillow raises errors of nearly every type for damaged files.
    other = describe_other(photo) if isinstance(photo, bytes) else None
    return errors.InvalidImage(message, detail=other)


def _decode_jpeg(jpeg: Jpeg, contract: InputContract, max_pixels: int) -> DecodedImage:
    _check_size((jpeg.width, jpeg.height), max_pixels, _MAX_JPEG_SIDE)
    if unread := jpeg.find_unread_kind():
        raise errors.UnsupportedImage(unread, FORMATS)
    if contract.resize_mode == "squash" and contract.interpolation != "nearest":
        orientation = read_orientation(jpeg.exif)
        wanted = _turn((contract.width, contract.height), orientation)
        pixels = shrink_jpeg(jpeg, *wanted, contract.interpolation)
        if pixels is not None:
            if orientation != UPRIGHT:
                pixels = np.asarray(Image.fromarray(pixels).transpose(_UPRIGHT_TURNS[orientation]))
            return DecodedImage(pixels, *_turn((jpeg.width, jpeg.height), orientation))
    return _decode_by_pillow(trim_jpeg(jpeg.strip()), jpeg.exif, contract, max_pixels)


def _decode_by_pillow(
    data: bytes, exif: bytes, contract: InputContract, max_pixels: int
) -> DecodedImage:
    file, orientation = _open(data, exif, max_pixels)
    size = _turn(file.size, orientation)
    frame = contract.width, contract.height  # the least to resize from
    if contract.resize_mode != "squash":
        is_padded = contract.resize_mode == "pad"
        frame = _find_inner(size, contract) if is_padded else _crop_frame(contract)
    width, height = _turn(frame, orientation)
    file.draft(None, (_DRAFT_OVERSAMPLING * width, _DRAFT_OVERSAMPLING * height))
    if file.format == "PNG":
        make_transparent(file, data)
    file.load()
    if file.format == "JPEG" and looks_cut(file):
        trim_jpeg(data, is_suspect=True)
    image = _flatten(file)
    if orientation != UPRIGHT:
        image = image.transpose(_UPRIGHT_TURNS[orientation])
    return DecodedImage(resize_image(image, contract, size, orientation), *size)


def _turn(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Converts width and height between stored and upright."""
    return size[::-1] if orientation >= 5 else size


def resize_image(
    image: Image.Image,
    contract: InputContract,
    size: tuple[int, int] | None = None,
    orientation: int = UPRIGHT,
) -> PixelArray:
    """Resizes upright RGB to uint8 [H, W, 3]; `size` is the original's, `orientation` EXIF's."""
    resample = Image.Resampling[contract.interpolation.upper()]
    if contract.resize_mode == "squash":
        if image.height > _MAX_ASPECT * image.width:
            # Pillow resizes the width first: 1 x 65535 pixels would become 448 x 65535.
            image = image.resize((image.width, contract.height), resample)
        return np.asarray(image.resize((contract.width, contract.height), resample), np.uint8)
    if contract.resize_mode == "pad":
        return np.asarray(_pad_picture(image, contract, size or image.size, orientation), np.uint8)
    (width, height), (frame_width, frame_height) = image.size, _crop_frame(contract)
    if max(width, height) > _MAX_ASPECT * min(width, height):
        width, height = min(width, _MAX_ASPECT * height), min(height, _MAX_ASPECT * width)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    # The smallest size of the same shape that covers the frame.
    if frame_height * width >= frame_width * height:
        size = (frame_height * width // height, frame_height)
    else:
        size = (frame_width, frame_width * height // width)
    left, top = round((size[0] - contract.width) / 2), round((size[1] - contract.height) / 2)
    pixels = np.asarray(image.resize(size, resample), np.uint8)
    return pixels[top : top + contract.height, left : left + contract.width]


def _open(data: bytes, exif: bytes, max_pixels: int) -> tuple[ImageFile.ImageFile, int]:
    if (container := find_container(data)) is not None:
        max_side = _MAX_AVIF_SIDE if container == "AVIF" else _MAX_SIDE
        for size in find_sizes(data):
            _check_size(size, max_pixels, max_side)
        pixels = count_pixels(data) / _MAX_TIMES_DECODED
        if pixels > max_pixels:
            where = "(width x height, of the picture and its tiles)"
            raise errors.TooManyPixels(max_pixels, int(min(pixels, sys.maxsize)), where=where)
        data = hide_exif(data)
    try:
        image = Image.open(_MeteredFile(data), formats=FORMATS)
    except OSError as error:
        # Pillow names so what it does not read of a BMP, such as masks in another order.
        kind = str(error).removeprefix("Unsupported ")
        if kind.startswith("BMP "):
            raise errors.UnsupportedImage(kind, FORMATS) from error
        raise
    _check_size(image.size, max_pixels)
    if image.format == "JPEG":
        # All at once: Pillow's decoder cannot wait for more of arithmetic codes.
        image.decodermaxblock = len(data)
    if any(tile.codec_name == "bmp_rle" for tile in image.tile):
        # Pillow decodes these in Python, which takes seconds.
        raise errors.UnsupportedImage("run-length encoded BMP", FORMATS)
    # Pillow returns the EXIF block of a WebP in `info`.
    return image, read_orientation(exif or image.info.get("exif") or b"")


def _check_size(size: tuple[int, int], max_pixels: int, max_side: int = _MAX_SIDE) -> None:
    if max(size) > max_side:
        raise errors.TooManyPixels(max_side, where="on a side")
    if math.prod(size) > max_pixels:
        raise errors.TooManyPixels(max_pixels, math.prod(size))


def _flatten(image: Image.Image) -> Image.Image:
    if image.format == "BMP" and image.mode == "RGBA" and not image.getchannel("A").getbbox():
        image = image.convert("RGB")  # the writer left the fourth byte 0; browsers do the same
    if image.mode.startswith("I"):  # 16-bit grey; Pillow's own conversion would clip it
        samples = np.asarray(image).astype(np.uint32)
        grey = (samples >> 8).clip(0, 255).astype(np.uint8)
        grey[samples == image.info.get("transparency", -1)] = 255
        image = Image.fromarray(grey)
    if image.has_transparency_data:
        if image.mode != "RGBA":  # else it would be copied: 4 bytes a pixel
            image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _crop_frame(contract: InputContract) -> tuple[int, int]:
    """Returns width and height that a picture must cover before the centre crop."""
    return int(contract.width / contract.crop_pct), int(contract.height / contract.crop_pct)


def _find_inner(size: tuple[int, int], contract: InputContract) -> tuple[int, int]:
    """Returns the width and height that a photo of `size` has after its first resize."""
    frame = contract.width, contract.height
    if contract.fit_size is not None:
        frame = contract.fit_size, contract.fit_size
    # Rounded as the taggers' own code does it.
    width, height = (
        max(1, round(length * (target / max(size))))
        for length, target in zip(size, frame, strict=True)
    )
    return width, height


def _pad_picture(
    image: Image.Image, contract: InputContract, size: tuple[int, int], orientation: int = 1
) -> Image.Image:
    """Pads an upright RGB picture to a square, and resizes that to the contract's size.

    `size` is the original's; a JPEG may be decoded at a fraction of it. If a side has more than
    4096 pixels, the picture is first reduced too, unless there is a `fit_size`.
    """
    if contract.fit_size is None and max(image.size) > _MAX_PADDED_SIDE:
        image = image.reduce(math.ceil(max(image.size) / _MAX_PADDED_SIDE))
    # Sides of a smaller picture are rounded up: it has a part of a pixel more than the original, at
    # its end, or at its start if EXIF's orientation has mirrored it.
    scale = round(max(size) / max(image.size))
    side = max(size) / scale
    mirrored = orientation in (2, 3, 6, 7), orientation in (3, 4, 7, 8)
    x_more, y_more = (
        (wide - length / scale) * is_mirrored
        for wide, length, is_mirrored in zip(image.size, size, mirrored, strict=True)
    )
    if contract.fit_size is not None:
        resample = Image.Resampling[contract.fit_interpolation.upper()]
        whole = x_more, y_more, x_more + size[0] / scale, y_more + size[1] / scale
        size, side, x_more, y_more = _find_inner(size, contract), contract.fit_size, 0.0, 0.0
        image = image.resize(size, resample, whole)
    # Offset of the original in its square, in pixels of the picture; the box has the fraction.
    full = contract.fit_size or max(size)
    left = (full - size[0]) // 2 * side / full - x_more
    top = (full - size[1]) // 2 * side / full - y_more
    x, y = math.ceil(left), math.ceil(top)
    box = (x - left, y - top, x - left + side, y - top + side)
    square = Image.new("RGB", (math.ceil(box[2]), math.ceil(box[3])), contract.pad_color)
    square.paste(image, (x, y))
    resample = Image.Resampling[contract.interpolation.upper()]
    return square.resize((contract.width, contract.height), resample, box)
