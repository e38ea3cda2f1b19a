"""Padding: a photo in the middle of a square of one colour, as taggers are trained."""

from __future__ import annotations

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


def pad_picture(image: Image.Image, contract: InputContract, size: tuple[int, int]) -> Image.Image:
    """Pads an upright RGB picture to a square, and resizes that to the contract's size.

    `size` is the original's; a JPEG may be decoded at a fraction of it. If a side has more than
    4096 pixels, the picture is first reduced too, unless there is a `fit_size`.
    """
    if contract.fit_size is not None:
        resample = Image.Resampling[contract.fit_interpolation.upper()]
        size = find_inner(size, contract)
        image = image.resize(size, resample)
    elif max(image.size) > _MAX_SIDE:
        image = image.reduce(math.ceil(max(image.size) / _MAX_SIDE))
    side, full = (contract.fit_size or max(each) for each in (image.size, size))
    # Where the original is in its square, in pixels of the picture; the box moves the fraction.
    left, top = ((full - length) // 2 * side / full for length in size)
    x, y = math.ceil(left), math.ceil(top)
    box = (x - left, y - top, x - left + side, y - top + side)
    square = Image.new("RGB", (math.ceil(box[2]), math.ceil(box[3])), contract.pad_color)
    square.paste(image, (x, y))
    resample = Image.Resampling[contract.interpolation.upper()]
    return square.resize((contract.width, contract.height), resample, box)
