"""HEIC and AVIF, with their decoder and without."""

import struct
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from service.bundle.card import InputContract
from service.errors import ImageError, InvalidImage, TooManyPixels, UnsupportedImage
from service.images import formats
from service.images.decode import decode_image
from service.images.formats import FORMATS, find_container, find_unsupported_format
from service.images.heif import hide_exif
from tests.support.photos import encode_picture, make_exif, make_picture

CONTRACT = InputContract(height=16, width=24, resize_mode="squash", interpolation="bilinear")
CONTAINERS = ("HEIF", "AVIF")

needs_decoder = pytest.mark.skipif("HEIF" not in FORMATS, reason="pillow-heif is not installed")


def make_hostile_exif() -> bytes:
    """Returns an EXIF block whose tags claim gigabytes, all of the same bytes."""
    count = 20_000
    tags = b"".join(struct.pack(">HHII", i, 2, 100_000, 240_014) for i in range(count))
    return b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", count) + tags + bytes(100_100)


def assert_decoded(data: bytes) -> None:
    """Checks that `make_picture(1, 64, 48)` is found."""
    decoded = decode_image(data, CONTRACT, 10_000)
    small = make_picture(1, 64, 48).resize((24, 16), Image.Resampling.BILINEAR)
    assert (decoded.width, decoded.height) == (64, 48)
    assert np.abs(decoded.pixels - np.asarray(small, np.int16)).mean() < 8


@needs_decoder
@pytest.mark.parametrize("file_format", CONTAINERS)
def test_container_is_decoded(file_format: str) -> None:
    assert_decoded(encode_picture(make_picture(1, 64, 48), file_format))


@needs_decoder
@pytest.mark.parametrize("file_format", CONTAINERS)
@pytest.mark.parametrize("brand", [b"mif1", b"msf1"])
def test_common_brand_may_contain_either_format(file_format: str, brand: bytes) -> None:
    data = encode_picture(make_picture(1, 64, 48), file_format)
    assert decode_image(data[:8] + brand + data[12:], CONTRACT, 10_000).width == 64


@needs_decoder
def test_avif_is_turned_by_its_own_property() -> None:
    lying = make_picture(1, 64, 48).transpose(Image.Transpose.ROTATE_90)
    # Pillow writes the orientation as the property `irot`.
    assert_decoded(encode_picture(lying, "AVIF", exif=make_exif(6)))


@needs_decoder
def test_heic_is_not_turned_by_its_exif() -> None:
    # pillow-heif writes no property.
    data = encode_picture(make_picture(1, 64, 48), "HEIF", exif=make_exif(6))
    assert b"irot" not in data
    assert decode_image(data, CONTRACT, 10_000).width == 64


@needs_decoder
@pytest.mark.parametrize("file_format", CONTAINERS)
def test_exif_that_claims_gigabytes_is_not_parsed(file_format: str) -> None:
    with warnings.catch_warnings(action="ignore"):  # writing it, Pillow reads it
        data = encode_picture(make_picture(1), file_format, exif=make_hostile_exif())
    assert len(data) > 300_000
    # A parser would warn.
    assert decode_image(data, CONTRACT, 10_000).pixels.shape == (16, 24, 3)


@needs_decoder
@pytest.mark.parametrize("file_format", CONTAINERS)
def test_pixel_limit_applies_to_containers(file_format: str) -> None:
    data = encode_picture(make_picture(1, 64, 48), file_format)
    with pytest.raises(TooManyPixels):
        decode_image(data, CONTRACT, 64 * 48 - 1)


@needs_decoder
@pytest.mark.parametrize("file_format", CONTAINERS)
def test_pixel_limit_applies_to_every_picture_in_a_container(file_format: str) -> None:
    """A tile, or what is cropped, may be larger than the picture that is shown."""
    data = encode_picture(make_picture(1, 64, 48), file_format)
    content = b"ispe" + bytes(4) + struct.pack(">II", 32_768, 32_768)
    assert decode_image(data + b"\0\0\0\x18free" + bytes(16), CONTRACT, 10_000).width == 64
    with pytest.raises(TooManyPixels):
        decode_image(data + b"\0\0\0\x1cfree" + content, CONTRACT, 10_000)


@needs_decoder
@given(
    st.sampled_from(CONTAINERS),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
)
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_damaged_picture_gives_an_image_or_an_image_error(
    file_format: str, damage: list[tuple[float, int]]
) -> None:
    data = bytearray(encode_picture(make_picture(1), file_format))
    for place, value in damage:
        data[int(place * len(data))] = value
    try:
        assert decode_image(bytes(data), CONTRACT, 10_000).pixels.shape == (16, 24, 3)
    except ImageError:
        return


def test_junk_in_a_container_is_invalid_or_unsupported() -> None:
    for brand in (b"heic", b"avif", b"mif1", b"avis"):
        with pytest.raises((InvalidImage, UnsupportedImage)):
            decode_image(b"\0\0\0\x1cftyp" + brand + bytes(200), CONTRACT, 10_000)


def test_containers_are_unsupported_without_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "FORMATS", ("JPEG", "PNG"))
    for brand in (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1"):
        assert find_unsupported_format(b"\0\0\0\x1cftyp" + brand) == "HEIF"
    assert find_unsupported_format(b"\0\0\0\x1cftypavif") == "AVIF"
    assert find_unsupported_format(b"\0\0\0\x1cftypisom") == "ISO media 'isom'"


@given(st.binary(max_size=200))
def test_hiding_exif_changes_no_length_and_never_fails(data: bytes) -> None:
    for content in (data, struct.pack(">I4s", len(data) + 8, b"meta") + data):
        assert len(hide_exif(content)) == len(content)
    assert find_container(data) in (None, "HEIF", "AVIF")
