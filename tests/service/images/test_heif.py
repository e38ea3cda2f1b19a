"""HEIC and AVIF: what a file costs to decode is known from its boxes, and its EXIF is ignored."""

import math
import struct
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from service.bundle.card import InputContract
from service.errors import InvalidImage, TooManyPixels
from service.images.decode import decode_image
from service.images.formats import FORMATS, find_container
from service.images.heif import count_pixels, find_sizes, hide_exif
from tests.support.heif_files import make_box, make_full_box, make_grid
from tests.support.photos import encode_picture, make_exif, make_picture

pytestmark = pytest.mark.skipif("HEIF" not in FORMATS, reason="pillow-heif is not installed")

CONTRACT = InputContract(height=16, width=24, resize_mode="squash", interpolation="bilinear")
PICTURE = make_picture(1, 64, 48)
both = pytest.mark.parametrize("file_format", ["HEIF", "AVIF"])


def assert_decoded(data: bytes) -> None:
    """Checks that `PICTURE` is found."""
    decoded = decode_image(data, CONTRACT, 10_000)
    small = PICTURE.resize((24, 16), Image.Resampling.BILINEAR)
    assert (decoded.width, decoded.height) == (64, 48)
    assert np.abs(decoded.pixels - np.asarray(small, np.int16)).mean() < 8


@both
def test_container_is_decoded_up_to_the_limit_of_pixels(file_format: str) -> None:
    data = encode_picture(PICTURE, file_format)
    assert_decoded(data)
    for brand in (b"mif1", b"msf1"):  # either format
        assert_decoded(data[:8] + brand + data[12:])
    with pytest.raises(TooManyPixels):
        decode_image(data, CONTRACT, 64 * 48 - 1)
    # A tile, or a picture that is cropped, may be larger than what is shown.
    larger = b"ispe" + bytes(4) + struct.pack(">II", 32_768, 32_768)
    assert_decoded(data + make_box(b"free", bytes(16)))
    with pytest.raises(TooManyPixels):
        decode_image(data + make_box(b"free", larger), CONTRACT, 10_000)


def test_property_turns_a_picture_and_exif_does_not() -> None:
    # Pillow writes the orientation as the property `irot`, and pillow-heif writes none.
    lying = PICTURE.transpose(Image.Transpose.ROTATE_90)
    assert_decoded(encode_picture(lying, "AVIF", exif=make_exif(6)))
    data = encode_picture(PICTURE, "HEIF", exif=make_exif(6))
    assert b"irot" not in data
    assert_decoded(data)


@both
def test_exif_that_claims_gigabytes_is_not_parsed(file_format: str) -> None:
    count = 20_000  # tags, all of the same bytes
    tags = b"".join(struct.pack(">HHII", i, 2, 100_000, 240_014) for i in range(count))
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", count) + tags + bytes(100_100)
    with warnings.catch_warnings(action="ignore"):  # writing it, Pillow reads it
        data = encode_picture(PICTURE, file_format, exif=exif)
    assert len(data) > 300_000
    # A parser would warn.
    assert decode_image(data, CONTRACT, 10_000).pixels.shape == (16, 24, 3)


@given(st.binary(max_size=200))
def test_hiding_exif_changes_no_length_and_never_fails(data: bytes) -> None:
    for content in (data, make_box(b"meta", data)):
        assert len(hide_exif(content)) == len(content)
    assert find_container(data) in (None, "HEIF", "AVIF")


@both
def test_single_picture_costs_its_pixels(file_format: str) -> None:
    data = encode_picture(make_picture(1, 128, 64), file_format)
    assert list(find_sizes(data)) == [(128, 64)]
    # Boxes may have their size in 64 bits, or reach to the end of the file.
    for head in (b"", struct.pack(">I4sQI", 1, b"free", 20, 0), make_box(b"free", bytes(9))):
        assert count_pixels(head + data) == 128 * 64


def test_avif_with_a_side_that_its_decoder_refuses_is_too_large() -> None:
    assert decode_image(encode_picture(Image.new("L", (32_768, 1)), "AVIF"), CONTRACT, 100_000)
    for size in ((32_769, 1), (1, 32_769)):
        with pytest.raises(TooManyPixels):
            decode_image(encode_picture(Image.new("L", size), "AVIF"), CONTRACT, 100_000)


GRID = make_grid(4, (64, 64), (250, 64)) if "HEIF" in FORMATS else b""


def test_tiles_count_as_often_as_they_are_decoded() -> None:
    assert count_pixels(GRID) == 4 * 64 * 64 + 250 * 64
    assert decode_image(GRID, CONTRACT, 20_000).width == 250


def test_grid_without_a_size_is_damaged_although_libheif_says_that_memory_is_short() -> None:
    with pytest.raises(InvalidImage):
        decode_image(GRID[:-8] + bytes(8), CONTRACT, 20_000)


def test_many_tiles_for_a_small_picture_are_refused() -> None:
    data = make_grid(250, (256, 256), (64, 64))
    assert len(data) < 3000
    with pytest.raises(TooManyPixels, match="and its tiles"):
        decode_image(data, CONTRACT, 1_000_000)


@pytest.mark.parametrize("references", [(2,), (1, 2), (3,)])
def test_part_of_itself_or_without_a_size_costs_too_much(references: tuple[int, ...]) -> None:
    data = make_grid(1, (64, 64), (64, 64), references=references)
    assert count_pixels(data) == math.inf
    with pytest.raises(TooManyPixels):
        decode_image(data, CONTRACT, 1_000_000)


@pytest.mark.parametrize(
    ("list_of", "content"),
    [
        (b"iprp", make_full_box(b"ipma", struct.pack(">I", 1000))),
        (b"iref", bytes(4) + make_box(b"dimg", struct.pack(">HH", 1, 65535))),
    ],
)
def test_entries_beyond_the_end_of_their_box_are_not_read(list_of: bytes, content: bytes) -> None:
    """Each box would be read to the end of the file: 62 kB took 9.5 s, or 300 MB."""
    meta = make_full_box(b"meta", make_box(list_of, content))
    with pytest.raises(struct.error):
        count_pixels(meta + bytes(200_000))


@given(st.integers(0, 900), st.binary(max_size=8))
def test_damaged_boxes_raise_only_struct_error(place: int, damage: bytes) -> None:
    spoilt = GRID[:place] + damage + GRID[place + len(damage) :]
    assert len(hide_exif(spoilt)) == len(spoilt)
    try:
        assert count_pixels(spoilt) >= 0
    except struct.error:
        return
