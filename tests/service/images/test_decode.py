"""Every kind of picture becomes the encoder's input, and every kind of junk an error."""

import hashlib
import io
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from service.bundle.card import InputContract
from service.errors import ImageError, InvalidImage, TooManyPixels, UnsupportedImage
from service.images import jpeg
from service.images.decode import PixelArray, decode_image, resize_image
from service.images.formats import FORMATS
from service.images.jpeg import AVAILABLE, parse_jpeg
from tests.support.odd_files import (
    make_bmp,
    make_chunk,
    make_cut_files,
    make_damaged_pngs,
    make_odd_files,
    put_into_png,
)
from tests.support.photos import CAMERA_TURNS, encode_picture, make_exif, make_photo, make_picture
from tests.support.unread_files import make_segment

# Pillow warns about what it repairs; the service logs that.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")

CONTRACT = InputContract(height=16, width=24, resize_mode="squash", interpolation="bilinear")
MAX_PIXELS = 1_000_000
SHARED = Path(os.environ.get("ML_DECODER_SHARED", Path(__file__).parents[4] / "shared"))


def decode(data: bytes, contract: InputContract = CONTRACT) -> PixelArray:
    return decode_image(data, contract, MAX_PIXELS).pixels


def change(resize_mode: str = "crop", **changes: Any) -> InputContract:
    return CONTRACT.model_copy(update={"resize_mode": resize_mode, **changes})


def shrink(picture: Image.Image) -> PixelArray:
    return np.asarray(picture.resize((24, 16), Image.Resampling.BILINEAR))


def assert_refused(
    data: bytes, error: type[ImageError] = InvalidImage, contract: InputContract = CONTRACT
) -> None:
    """Checks that a file is refused, and that a good one is decoded afterwards."""
    with pytest.raises(error):
        decode(data, contract)
    np.testing.assert_array_equal(decode(make_photo(0)), shrink(make_picture(0)))


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "GIF", "WEBP", "JPEG"])
def test_supported_format_gives_rgb_pixels_and_the_original_size(file_format: str) -> None:
    decoded = decode_image(make_photo(3, file_format), CONTRACT, MAX_PIXELS)
    assert (decoded.pixels.dtype, decoded.pixels.shape) == (np.uint8, (16, 24, 3))
    assert (decoded.width, decoded.height) == (48, 32)
    error = np.abs(decoded.pixels.astype(int) - shrink(make_picture(3))).mean()
    assert error < (12 if file_format == "GIF" else 4)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGBA", "CMYK", "I;16"])
def test_unusual_colours_look_like_the_rgb_picture(mode: str) -> None:
    picture = make_picture(4).convert("L")
    if mode == "I;16":
        stored = Image.fromarray(np.asarray(picture).astype(np.uint16) * 257)
    elif mode == "PA":
        stored = picture.convert("RGBA").quantize(256)
    else:
        stored = picture.convert(mode)
    data = encode_picture(stored, "JPEG" if mode == "CMYK" else "PNG")
    reference = picture.convert("1" if mode == "1" else "RGB").convert("RGB")
    assert np.abs(decode(data).astype(int) - shrink(reference)).max() <= 8


def test_transparent_parts_become_white() -> None:
    clear, hidden = Image.new("RGBA", (8, 8), (255, 0, 0, 0)), make_picture(5)
    hidden.putalpha(0)
    deep = Image.fromarray(np.full((8, 8), 772, np.uint16))
    for data, value in (
        (encode_picture(clear), 255),
        (encode_picture(Image.new("LA", (8, 8), (0, 128))), 127),
        (encode_picture(Image.new("RGB", (8, 8), (1, 2, 3)), transparency=(1, 2, 3)), 255),
        (encode_picture(deep, transparency=772), 255),
        (encode_picture(deep, transparency=771), 3),
        # An alpha of 0 everywhere counts in every format but BMP, as in browsers.
        *((encode_picture(hidden, kind), 255) for kind in ("PNG", "WEBP", "GIF")),
    ):
        assert (decode(data) == value).all()
    assert decode(make_bmp(1)).min() >= 254


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG"])
def test_animation_gives_its_first_frame(file_format: str) -> None:
    frames = [Image.new("RGB", (32, 32), colour) for colour in ("red", "blue", "lime")]
    data = encode_picture(frames[0], file_format, save_all=True, append_images=frames[1:])
    assert decode(data).reshape(-1, 3).mean(axis=0) == pytest.approx([255, 0, 0], abs=4)


@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "JPEG"])
@pytest.mark.parametrize("orientation", CAMERA_TURNS)
def test_oriented_photo_equals_the_upright_one(orientation: int, file_format: str) -> None:
    upright, turn = make_picture(6, 64, 32), CAMERA_TURNS[orientation]
    stored = upright if turn is None else upright.transpose(turn)
    exif = make_exif(orientation)
    exif[0x010F] = "a camera"
    options = {"quality": 98, "subsampling": 0, "lossless": True}
    data = encode_picture(stored, file_format, exif=exif, **options)
    decoded = decode_image(data, CONTRACT, MAX_PIXELS)
    assert (decoded.width, decoded.height) == (64, 32)
    largest = np.abs(decoded.pixels.astype(int) - decode(encode_picture(upright))).max()
    assert largest <= (4 if file_format == "JPEG" else 0)


def test_orientation_after_the_pixels_of_a_png_counts() -> None:
    upright = make_picture(6, 64, 32)
    block = make_chunk(b"eXIf", make_exif(6).tobytes().removeprefix(b"Exif\0\0"))
    plain = encode_picture(upright.transpose(CAMERA_TURNS[6]))
    data = plain[:-12] + block + plain[-12:]  # the last chunk, IEND, has 12 bytes
    np.testing.assert_array_equal(decode(data), decode(encode_picture(upright)))


TAGS = b"".join(struct.pack("<HHII", 0xC000 + i, 7, 60_000, 8) for i in range(5000))


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"II*\0",
        b"II*\0\xff\xff\xff\xff",
        b"MM\0*\0\0\0\x08\xff\xff",
        b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x09\0\0\0",
        b"\xff" * 60_000,
        b"II*\0\x08\0\0\0" + struct.pack("<H", 5000) + TAGS,  # thousands of huge tags
    ],
    ids=["empty", "no start", "far start", "short", "9", "junk", "bomb"],
)
def test_malformed_exif_counts_as_upright(exif: bytes) -> None:
    plain = encode_picture(make_picture(7), "JPEG")
    parts = make_segment(0xE1, b"") + make_segment(0xE1, b"Exif\0\0" + exif)
    parts += make_segment(0xE1, b"Exif\0\0" + bytes(60_000)) * 20
    junk = plain[:2] + parts + make_segment(0xE2, b"ICC_PROFILE\0junk") + plain[2:]
    np.testing.assert_array_equal(decode(junk), decode(plain))


@pytest.mark.parametrize("count", [1, 7, 100_000])
def test_orientation_is_found_after_fill_bytes(count: int) -> None:
    """Any number of 0xFF may precede a marker (ITU-T T.81, B.1.1.2)."""
    turned = encode_picture(make_picture(7), "JPEG", exif=make_exif(6))
    at = turned.index(b"\xff\xe1")
    filled = turned[:at] + b"\xff" * count + turned[at:]
    np.testing.assert_array_equal(decode(filled), decode(turned))


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1), (65500, 1), (1, 65500)])
def test_extreme_shapes_are_accepted(size: tuple[int, int]) -> None:
    data = encode_picture(Image.new("RGB", size, (10, 20, 30)))
    for contract in (CONTRACT, change(crop_pct=0.875)):
        pixels = decode(data, contract)
        assert pixels.shape == (16, 24, 3)
        assert (pixels == [10, 20, 30]).all()


def make_rle_bmp() -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, 4, 4, 1, 8, 1, 8, 0, 0, 256, 0)
    start = 14 + len(header) + 1024  # with the palette
    return struct.pack("<2sIHHI", b"BM", start + 8, 0, 0, start) + header + bytes(1024 + 8)


def make_bomb() -> bytes:
    """Returns a PNG without pixels: a decoder would find it truncated."""
    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + make_chunk(b"IHDR", header) + make_chunk(b"IDAT", b"")


def make_wide_jpeg(width: int, height: int) -> bytes:
    """Returns a JPEG with these sides in its header; its codes are for 65,500 x 1."""
    data = encode_picture(Image.new("L", (65_500, 1)), "JPEG")
    size = data.index(b"\xff\xc0") + 5
    return data[:size] + struct.pack(">HH", height, width) + data[size + 4 :]


SVG = b'\xef\xbb\xbf <?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>'
CUTS = {"JPEG": 200, "PNG": 30, "GIF": 100, "WEBP": 20, "BMP": 100}
JPEG = encode_picture(make_picture(0), "JPEG", progressive=True)
SCANS = JPEG[JPEG.rindex(b"\xff\xda") : -2] * 200
REFUSED: dict[type[ImageError], dict[str, bytes]] = {
    InvalidImage: {
        **{"empty": b"", "soi": b"\xff\xd8", "html": b"<html><body>photo.jpg</body></html>"},
        **{"png": b"\x89PNG\r\n\x1a\n", "zeros": bytes(1000)},
        **{f"{name} cut": make_photo(0, name)[:-count] for name, count in CUTS.items()},
        **{name: make_photo(0, name) for name in ("PPM", "PCX")},
        **make_damaged_pngs(),
        "countless chunks": put_into_png(make_photo(0), make_chunk(b"teXt", b"") * 100_000),
        "countless scans": JPEG[:-2] + SCANS + JPEG[-2:],
        "end in a comment": JPEG[:-2] + b"\xff\xfe\x00\x04\xff\xd9" + SCANS + JPEG[-2:],
    },
    UnsupportedImage: {
        **{"pdf": b"%PDF-1.7\n", "psd": b"8BPS\0\1", "eps": b"%!PS-Adobe-3.0 EPSF-3.0"},
        **{"dos eps": b"\xc5\xd0\xd3\xc6\0\0", "svg": SVG, "plain svg": b"<svg></svg>"},
        **{name: make_photo(0, name) for name in ("TIFF", "ICO")},
        "run-length encoded BMP": make_rle_bmp(),
    },
    TooManyPixels: {
        "pixel bomb": make_bomb(),
        **{
            f"{kind} of {size}": encode_picture(Image.new("1", size), kind)
            for size in ((65_536, 1), (1, 65_536))
            for kind in ("PNG", "BMP")
        },
        **{"wide JPEG": make_wide_jpeg(65_501, 1), "high JPEG": make_wide_jpeg(1, 65_501)},
    },
}


@pytest.mark.parametrize(
    ("error", "name"), [(error, name) for error, files in REFUSED.items() for name in files]
)
def test_file_is_refused(error: type[ImageError], name: str) -> None:
    assert_refused(REFUSED[error][name], error)


def test_limits_are_inclusive() -> None:
    for size in ((65_535, 1), (1, 65_535)):
        assert decode_image(encode_picture(Image.new("1", size)), CONTRACT, MAX_PIXELS)
    assert decode_image(make_wide_jpeg(65_500, 1), CONTRACT, MAX_PIXELS)
    for file_format in ("PNG", "JPEG"):
        data = encode_picture(Image.new("RGB", (50, 40)), file_format)
        for contract in (CONTRACT, change("crop")):
            assert decode_image(data, contract, 2000).width == 50
            with pytest.raises(TooManyPixels):
                decode_image(data, contract, 1999)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG"])
def test_nearest_copies_single_pixels_of_the_photo(file_format: str) -> None:
    data = make_photo(2, file_format)
    stored = Image.open(io.BytesIO(data)).convert("RGB")
    expected = np.asarray(stored.resize((24, 16), Image.Resampling.NEAREST))
    found = decode(data, change("squash", interpolation="nearest"))
    np.testing.assert_array_equal(found, expected)


ODD_FILES, CUT_FILES = make_odd_files(), make_cut_files()
LARGE = {"height": 32, "width": 48}
# Only JPEGs that are squashed have another decoder.
WAYS = ((change("squash", **LARGE), AVAILABLE), (change("squash", **LARGE), False),
        (change("crop", **LARGE), AVAILABLE))  # fmt: skip


@pytest.mark.parametrize("name", ODD_FILES)
def test_odd_file_has_the_pixels_of_the_usual_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, usual = ODD_FILES[name]
    for contract, available in WAYS:
        monkeypatch.setattr(jpeg, "AVAILABLE", available)
        np.testing.assert_array_equal(decode(odd, contract), decode(usual, contract))


@pytest.mark.parametrize("name", CUT_FILES)
def test_jpeg_that_ends_early_is_invalid_whatever_follows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for contract, available in WAYS:
        monkeypatch.setattr(jpeg, "AVAILABLE", available)
        assert_refused(CUT_FILES[name], contract=contract)


def test_jpeg_with_an_endless_header_is_invalid() -> None:
    photo = encode_picture(make_picture(0), "JPEG")
    long, endless = (photo[:2] + b"\xff\xfe\0\2" * n + photo[2:] for n in (900, 100_000))
    assert parse_jpeg(long).is_quick
    decode(long)
    assert_refused(endless)
    with pytest.raises(InvalidImage):
        parse_jpeg(endless)


@pytest.mark.parametrize("progressive", [False, True])
def test_film_after_a_photo_counts_as_no_scan(*, progressive: bool) -> None:
    """Phones append one; a few megabytes contain any two bytes a hundred times."""
    photo = encode_picture(make_picture(0), "JPEG", progressive=progressive)
    film = b"\0\0\0\x18ftypmp42" + b"\xff\xda" * 200
    baseline = encode_picture(make_picture(0), "JPEG")
    np.testing.assert_array_equal(decode(photo + film), decode(baseline))


def assert_decoded_or_refused(data: bytes) -> None:
    try:
        pixels = decode(data)
    except ImageError:
        return
    assert pixels.shape == (16, 24, 3)


STARTS = [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"RIFF"]
STARTS += [b"\0\0\0\x1cftyp" + brand for brand in (b"heic", b"avif", b"mif1", b"avis")]


@settings(max_examples=250)
@given(st.sampled_from(STARTS), st.binary(max_size=300))
def test_random_bytes_give_an_image_or_an_image_error(magic: bytes, rest: bytes) -> None:
    assert_decoded_or_refused(magic + rest)


@settings(max_examples=150)
@given(
    st.sampled_from([make_photo(1, file_format) for file_format in FORMATS]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
)
def test_damaged_photo_gives_an_image_or_an_image_error(
    photo: bytes, damage: list[tuple[float, int]]
) -> None:
    data = bytearray(photo)
    for place, value in damage:
        data[int(place * len(data))] = value
    assert_decoded_or_refused(bytes(data))


def test_sideways_jpeg_is_reduced_for_its_upright_size() -> None:
    contract = change(width=96)
    stored = make_picture(8, 160, 960).transpose(CAMERA_TURNS[6])
    data = encode_picture(stored, "JPEG", exif=make_exif(6))
    full = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(decode(data, contract), resize_image(full, contract))


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The sizes to which Pillow has resized."""
    whole, noted = Image.Image.resize, []

    def resize(image: Image.Image, size: tuple[int, int], *rest: Any) -> Image.Image:
        noted.append(size)
        return whole(image, size, *rest)

    monkeypatch.setattr(Image.Image, "resize", resize)
    return noted


@pytest.mark.parametrize("turn", [None, Image.Transpose.TRANSPOSE])
def test_long_strip_is_cut_to_its_middle_before_it_is_resized(
    turn: Image.Transpose | None, sizes: list[tuple[int, int]]
) -> None:
    strip = np.zeros((1, 1001, 3), np.uint8)
    strip[:, 496:504] = 255
    picture = Image.fromarray(strip)
    picture = picture if turn is None else picture.transpose(turn)
    assert (decode(encode_picture(picture), change(width=16)) == 255).all()
    assert [max(size) for size in sizes] == [8 * 16]


def test_high_strip_is_not_widened_before_it_is_shortened(sizes: list[tuple[int, int]]) -> None:
    picture = make_picture(7, 3, 60_000)
    expected = np.asarray(picture.resize((400, 16), Image.Resampling.BILINEAR))
    sizes.clear()
    found = decode(encode_picture(picture), change("squash", width=400))
    assert sizes == [(3, 16), (400, 16)]
    assert np.abs(found.astype(int) - expected).max() <= 1


def test_crop_takes_the_centre_of_the_resized_picture() -> None:
    contract = change(height=20, width=20, crop_pct=0.8, interpolation="bicubic")
    picture = make_picture(9, 100, 50)
    # timm: the shorter side becomes floor(20 / 0.8) = 25, then the centre 20 x 20.
    resized = picture.resize((50, 25), Image.Resampling.BICUBIC)
    expected = np.asarray(resized.crop((15, 2, 35, 22)))
    np.testing.assert_array_equal(decode(encode_picture(picture), contract), expected)


@pytest.mark.skipif(
    not (SHARED / "goldens/visible/preprocess.npz").exists(), reason="needs the golden figures"
)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_squash_is_identical_to_the_official_preprocessing(interpolation: Any) -> None:
    goldens = np.load(SHARED / "goldens/visible/preprocess.npz")
    recipe: dict[str, Any] = {}
    exec(compile((SHARED / "goldens/recipe.py").read_text(), "recipe.py", "exec"), recipe)
    for case in json.loads(str(goldens["meta"]))["cases"]:
        size = {"height": case["size"], "width": case["size"]}
        contract = change("squash", **size, interpolation=interpolation)
        picture = Image.fromarray(recipe["make_photo"](case["h"], case["w"], case["seed"]))
        pixels = np.ascontiguousarray(resize_image(picture, contract))
        assert hashlib.sha256(pixels.tobytes()).hexdigest() == case[f"{interpolation}_sha256"]
