"""Chunks of a PNG: kept ones, EXIF and damage."""

import zlib

import pytest

from service.errors import InvalidImage
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


def test_metadata_and_what_follows_the_end_are_removed() -> None:
    long = make_chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(2_000_000)))
    odd = put_into_png(PNG, long, make_chunk(b"prVt", b"x", checksum=1))
    assert parse_png(odd + b"more") == (PNG, b"")


def test_first_good_exif_block_counts() -> None:
    wrong = make_chunk(b"eXIf", b"wrong", checksum=1)
    blocks = [make_chunk(b"eXIf", content) for content in (bytes(2**16), b"first", b"second")]
    assert parse_png(put_into_png(PNG, wrong, *blocks)) == (PNG, b"first")


@pytest.mark.parametrize("length", range(8, len(PNG), 97))
def test_cut_png_stays_cut(length: int) -> None:
    assert parse_png(PNG[:length]) is not None


@pytest.mark.parametrize("name", [b"IHDR", b"IDAT", b"IEND"])
def test_wrong_checksum_is_named(name: bytes) -> None:
    place = PNG.index(name)
    with pytest.raises(InvalidImage, match=name.decode()):
        parse_png(PNG[:place] + make_chunk(name, b"", checksum=1)[4:] + PNG[place + 4 :])
