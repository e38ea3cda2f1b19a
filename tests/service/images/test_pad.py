"""Padded photos have the pixels of a whole resized square; JPEGs decoded at a fraction are near."""

import io
import math
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from service.bundle.card import InputContract
from service.images.decode import PixelArray, decode_image, resize_image
from tests.support.photos import CAMERA_TURNS, encode_picture, make_exif, make_picture

CONTRACT = InputContract(height=24, width=24, resize_mode="pad", interpolation="bicubic")
FIT = {"fit_size": 32, "fit_interpolation": "bilinear"}


def change(**changes: Any) -> InputContract:
    return CONTRACT.model_copy(update=changes)


def decode(data: bytes, contract: InputContract = CONTRACT) -> PixelArray:
    return decode_image(data, contract, 10**8).pixels


def pad_by_pillow(picture: Image.Image, contract: InputContract = CONTRACT) -> PixelArray:
    """Pads and resizes as the taggers' own code does it."""
    side = contract.fit_size or max(picture.size)
    if contract.fit_size is not None:
        size = [round(length * (side / max(picture.size))) for length in picture.size]
        picture = picture.resize(size, Image.Resampling[contract.fit_interpolation.upper()])
    square = Image.new("RGB", (side, side), contract.pad_color)
    square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    filters = Image.Resampling[contract.interpolation.upper()]
    return np.asarray(square.resize((contract.width, contract.height), filters))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 300),
    st.integers(2, 300),
    st.integers(1, 80),
    st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos"]),
    st.sampled_from([{}, FIT, {"pad_color": (1, 20, 255)}]),
)
def test_pixels_are_those_of_the_whole_square(
    width: int, height: int, side: int, interpolation: str, more: dict[str, Any]
) -> None:
    contract = change(width=side, height=side, interpolation=interpolation, **more)
    picture = make_picture(1, width, height)
    ratio = min(contract.fit_size or 300, 300) / max(width, height)
    if min(width, height) * ratio < 0.6:
        return  # the taggers' own code fails
    found = decode(encode_picture(picture), contract)
    np.testing.assert_array_equal(found, pad_by_pillow(picture, contract))


@pytest.mark.parametrize("size", [(180, 62), (62, 180), (4, 500)])
def test_large_photo_is_reduced_and_lies_where_the_full_one_does(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.images.decode._MAX_PADDED_SIDE", max(size) // 2)
    picture = make_picture(2, *size)
    found = decode(encode_picture(picture)).astype(int)
    assert np.abs(found - pad_by_pillow(picture)).mean() < 2


@pytest.mark.parametrize("size", [(1, 65_500), (65_500, 1), (4_000, 6_000)])
@pytest.mark.parametrize("more", [{}, {"fit_size": 512}])
def test_square_has_at_most_16_megapixels(
    size: tuple[int, int], more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    picture, made = Image.new("RGB", size), Mock(wraps=Image.new)
    monkeypatch.setattr(Image, "new", made)
    assert resize_image(picture, change(width=448, height=448, **more)).shape == (448, 448, 3)
    assert all(math.prod(call.args[1]) <= 17 * 2**20 for call in made.call_args_list)


@pytest.mark.parametrize("contract", [CONTRACT, change(**FIT, pad_color=(9, 9, 9))])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_photo_is_padded_upright(orientation: int, contract: InputContract) -> None:
    upright = make_picture(3, 60, 40)
    turn = CAMERA_TURNS[orientation]
    stored = upright if turn is None else upright.transpose(turn)
    data = encode_picture(stored, exif=make_exif(orientation))
    np.testing.assert_array_equal(decode(data, contract), pad_by_pillow(upright, contract))


@pytest.mark.parametrize("size", [(1203, 809), (809, 1203), (3200, 200)])
@pytest.mark.parametrize(
    "more", [{}, FIT, {"resize_mode": "squash"}, {"resize_mode": "crop", "crop_pct": 0.9}]
)
@pytest.mark.parametrize("orientation", [1, 6])
def test_large_jpeg_decoded_at_a_fraction_lies_where_the_full_one_does(
    size: tuple[int, int], more: dict[str, Any], orientation: int
) -> None:
    contract = change(**more)
    data = encode_picture(make_picture(8, *size), "JPEG", exif=make_exif(orientation), quality=95)
    full = ImageOps.exif_transpose(Image.open(io.BytesIO(data)).convert("RGB"))
    difference = np.abs(decode(data, contract) - resize_image(full, contract).astype(int))
    assert difference.any(), "the JPEG was decoded in full"
    assert difference.mean() < 2
    assert difference.max() <= 40
