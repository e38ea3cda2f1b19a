"""Chunks of a PNG: kept ones, EXIF and damage."""

import pytest

from service.images.png import parse_png
from tests.support.odd_files import make_chunk, put_into_png
from tests.support.photos import encode_picture, make_photo, make_picture

PNG = make_photo(0)


def test_plain_png_is_unchanged() -> None:
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        png = encode_picture(make_picture(0).convert(mode))
        assert parse_png(png) == (png, b"")


def test_other_formats_are_no_png() -> None:
    for data in (b"", PNG[:7], make_photo(0, "JPEG")):
        assert parse_png(data) is None


def test_first_good_exif_block_counts() -> None:
    wrong = make_chunk(b"eXIf", b"wrong", checksum=1)
    blocks = [make_chunk(b"eXIf", content) for content in (bytes(2**16), b"first", b"second")]
    assert parse_png(put_into_png(PNG, wrong, *blocks)) == (PNG, b"first")


@pytest.mark.parametrize("length", range(8, len(PNG), 97))
def test_cut_png_stays_cut(length: int) -> None:
    assert parse_png(PNG[:length]) is not None
