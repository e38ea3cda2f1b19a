"""The end of a JPEG is found, and a scan that ends early."""

import io
from functools import partial

import pytest
from PIL import Image

from service.errors import InvalidImage
from service.images.scans import looks_cut, trim_jpeg
from tests.support.odd_files import END, JPEGS
from tests.support.photos import encode_picture, make_picture

encode = partial(encode_picture, file_format="JPEG")
several = pytest.mark.parametrize("jpeg", JPEGS.values(), ids=JPEGS)


@several
def test_picture_gets_its_end_back(jpeg: bytes) -> None:
    assert trim_jpeg(jpeg) is jpeg
    for rest in (END, b"", b"\xff", b"\xff\xff", b"\xff\xe0", END + b"more"):
        assert trim_jpeg(jpeg[:-2] + rest, is_suspect=True) == jpeg


@several
@pytest.mark.parametrize("rest", [b"", END, b"\xff\xe1\0\x04ab" + END, b"\xff\xd8 a film"])
def test_scan_that_ends_early_is_invalid(jpeg: bytes, rest: bytes) -> None:
    for lost in (4, 5, 8, 20, 50, 100, 250):
        with pytest.raises(InvalidImage):
            trim_jpeg(jpeg[: -2 - lost] + rest, is_suspect=True)


@pytest.mark.parametrize("name", ["baseline", "restarts"])
def test_every_row_of_a_jpeg_counts(name: str) -> None:
    """Wherever the data end, also after a whole row or restart interval."""
    jpeg = JPEGS[name]
    for length in range(jpeg.index(b"\xff\xda") + 20, len(jpeg) - 4, 7):
        with pytest.raises(InvalidImage):
            trim_jpeg(jpeg[:length] + END, is_suspect=True)


def test_missing_scans_are_left_to_the_decoder_unless_it_warned() -> None:
    jpeg = JPEGS["progressive"]
    coarse = jpeg[: jpeg.rindex(b"\xff\xc4")] + END
    assert trim_jpeg(coarse) is coarse
    with pytest.raises(InvalidImage, match="scans"):
        trim_jpeg(coarse, is_suspect=True)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_grey_of_missing_data_in_the_last_corner_is_suspect(mode: str) -> None:
    cut = encode(make_picture(5, 90, 50).convert(mode))[:-150] + END
    assert looks_cut(Image.open(io.BytesIO(cut)))
    assert not looks_cut(make_picture(5).convert(mode))


def test_grey_picture_is_no_cut_one() -> None:
    grey = encode(Image.new("RGB", (90, 50), (128, 128, 128)))
    assert looks_cut(Image.open(io.BytesIO(grey)))
    assert trim_jpeg(grey, is_suspect=True) == grey
