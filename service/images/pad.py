"""Padding: a photo in the middle of a square of one colour, as taggers are trained.

The whole square is not made: that of 1 x 65500 pixels takes 17 GB. Pillow decodes a large JPEG at a
fraction of its size, and the photo is placed by its full size: on photos of 2,600 pixels and an
input of 448 the pixels differ by 0.4 of 255 in the mean from full decoding (squashed ones by 1.5).
OpenCV's resize needs whole pixels, and differs by up to 11 in the mean of a photo.
"""

from __future__ import annotations

import math

from PIL import Image

from service.bundle.card import InputContract

# Input pixels that a filter takes on each side of an output pixel, if it does not shrink.
_REACH = {"nearest": 1, "bilinear": 1, "bicubic": 2, "lanczos": 3}
# Pixels; a photo and a copy of this size take less memory than the largest photo.
_MAX_COPY = 16 * 2**20


def find_inner(size: tuple[int, int], contract: InputContract) -> tuple[int, int]:
    """Returns the width and height that a photo of `size` has after its first resize."""
    width, height = size
    side = contract.fit_size
    # Rounded as the taggers' own code does it.
    by = [each / max(size) if side is None else min(side / width, side / height)
          for each in (contract.width, contract.height)]  # fmt: skip
    return max(1, round(width * by[0])), max(1, round(height * by[1]))


def pad_picture(image: Image.Image, contract: InputContract, size: tuple[int, int]) -> Image.Image:
    """Pads an upright RGB picture to a square, and resizes that to the contract's size.

    `size` is the original's; a JPEG may be decoded at a fraction of it. For a square contract, the
    pixels are those of Pillow's resize of the whole square; of a photo whose square has more than
    16 megapixels they may differ by 1.
    """
    width, height = contract.width, contract.height
    resample = Image.Resampling[contract.interpolation.upper()]
    if (side := contract.fit_size) is not None:
        fit = Image.Resampling[contract.fit_interpolation.upper()]
        image = image.resize(find_inner(size, contract), fit)
        square = Image.new("RGB", (side, side), contract.pad_color)
        square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        return square.resize((width, height), resample)
    if size[0] >= size[1]:
        turned = image.resize((width, image.height), resample).transpose(Image.Transpose.TRANSPOSE)
        return _widen(turned, size[::-1], height, contract).transpose(Image.Transpose.TRANSPOSE)
    if image.height**2 > _MAX_COPY:
        image = image.resize((image.width, height), resample)
    return _widen(image, size, width, contract).resize((width, height), resample)


def _widen(
    image: Image.Image, size: tuple[int, int], width: int, contract: InputContract
) -> Image.Image:
    """Pads the width to the height of the original, and resizes it; the height stays."""
    reduced = image.width / size[0]
    # Edges of the square, in columns of the picture.
    left = -((size[1] - size[0]) // 2) * reduced
    right = left + size[1] * reduced
    scale = (right - left) / width
    reach = right - left
    if reach * image.height > _MAX_COPY:
        reach = _REACH[contract.interpolation] * max(scale, 1.0) + 1
    # The output's columns that the picture changes, and the columns that these are made of.
    first = max(0, math.floor((-reach - left) / scale))
    last = min(width, math.ceil((image.width + reach - left) / scale))
    start = math.floor(max(left, left + first * scale - reach))
    stop = math.ceil(min(right, left + last * scale + reach))
    part = Image.new("RGB", (stop - start, image.height), contract.pad_color)
    part.paste(image, (-start, 0))
    edges = (left + each * scale - start for each in (first, last))
    begin, end = (min(max(edge, 0.0), part.width) for edge in edges)
    resample = Image.Resampling[contract.interpolation.upper()]
    changed = part.resize((last - first, image.height), resample, (begin, 0, end, image.height))
    if (first, last) == (0, width):
        return changed
    whole = Image.new("RGB", (width, image.height), contract.pad_color)
    whole.paste(changed, (first, 0))
    return whole
