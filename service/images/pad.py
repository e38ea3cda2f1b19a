"""Padding: a photo in the middle of a square of one colour, as taggers are trained."""

import math

from PIL import Image

from service.bundle.card import InputContract

_MAX_SIDE = 4096  # pixels; the whole square of 1 x 65500 pixels takes 17 GB


def find_inner(size: tuple[int, int], contract: InputContract) -> tuple[int, int]:
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


def pad_picture(
    image: Image.Image, contract: InputContract, size: tuple[int, int], orientation: int = 1
) -> Image.Image:
    """Pads an upright RGB picture to a square, and resizes that to the contract's size.

    `size` is the original's; a JPEG may be decoded at a fraction of it. If a side has more than
    4096 pixels, the picture is first reduced too, unless there is a `fit_size`.
    """
    if contract.fit_size is None and max(image.size) > _MAX_SIDE:
        image = image.reduce(math.ceil(max(image.size) / _MAX_SIDE))
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
        size, side, x_more, y_more = find_inner(size, contract), contract.fit_size, 0.0, 0.0
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
