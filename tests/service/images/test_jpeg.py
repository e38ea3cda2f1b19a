"""The fast decoder gives nearly Pillow's pixels; the header says what a JPEG costs; its end."""

import io
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from service.bundle.card import InputContract, Interpolation
from service.errors import ImageError, InvalidImage
from service.images import jpeg
from service.images.decode import PixelArray, decode_image
from service.images.jpeg import Jpeg, looks_cut, trim_jpeg
from tests.support.odd_files import END, JPEGS
from tests.support.photos import encode_picture, make_exif, make_photo, make_picture
from tests.support.unread_files import FRAMES, make_jpeg

needs_extra = pytest.mark.skipif(not jpeg.AVAILABLE, reason="the extra `fast` is not installed")

CONTRACT = InputContract(
    height=96, width=64, resize_mode="squash", crop_pct=1.0, interpolation="bicubic"
)
PHOTOS = sorted((Path(__file__).parents[3] / "docs" / "photos").glob("*.jpg"))
MEAN_DISTANCE = 3.0
"""Largest mean difference to Pillow's pixels, of 255; photos of cats and faces have 1."""

each_photo = pytest.mark.parametrize("photo", PHOTOS, ids=lambda path: path.stem)
encode = partial(encode_picture, file_format="JPEG")
Change = Callable[[bytes, bytes], bytes]


def parse(data: bytes) -> Jpeg:
    parsed = jpeg.parse_jpeg(data)
    assert parsed is not None
    return parsed


def shrink(data: bytes, width: int, height: int, interpolation: Interpolation) -> PixelArray | None:
    return jpeg.shrink_jpeg(parse(data), width, height, interpolation)


def decode(photo: bytes | Jpeg) -> PixelArray:
    return decode_image(photo, CONTRACT, 10**9).pixels


def decode_by_pillow(data: bytes, monkeypatch: pytest.MonkeyPatch) -> PixelArray:
    with monkeypatch.context() as patched:
        patched.setattr(jpeg, "AVAILABLE", False)
        return decode(data)


def measure_distance(found: PixelArray | None, expected: PixelArray | Image.Image) -> float:
    """Returns the mean difference of pixels."""
    wanted = np.asarray(expected, int)
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).mean())


@needs_extra
@each_photo
def test_photo_has_nearly_pillows_pixels(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for orientation in range(1, 9):
        data = encode(Image.open(photo), exif=make_exif(orientation), quality=92)
        found = decode(data)
        assert found.shape == (96, 64, 3)
        assert measure_distance(found, decode_by_pillow(data, monkeypatch)) < MEAN_DISTANCE


@needs_extra
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_usual_jpeg_is_decoded_without_pillow(
    mode: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode(Image.open(PHOTOS[0]).convert(mode), **options)
    monkeypatch.setattr("service.images.decode._decode_by_pillow", None)
    assert decode(data).shape == (96, 64, 3)


def sample(data: bytes, height: int, factors: int) -> bytes:
    """Changes the height and luma's sampling factors of a JPEG, which spoils the picture."""
    place = data.index(b"\xff\xc0") + 5
    low = data[place + 2 : place + 6]
    return data[:place] + struct.pack(">H", height) + low + bytes([factors]) + data[place + 7 :]


@needs_extra
@pytest.mark.parametrize(
    "data",
    [
        sample(encode(Image.new("RGB", (256, 1024)), subsampling=0), 256, 0x13),
        encode(Image.open(PHOTOS[0]).convert("CMYK")),
        encode(Image.open(PHOTOS[0]).resize((40, 200))),  # narrower than the encoder wants
        encode(Image.open(PHOTOS[0]).resize((200, 40))),
    ],
    ids=["1x3", "CMYK", "narrow", "low"],
)
def test_unusual_jpeg_is_decoded_by_pillow(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    np.testing.assert_array_equal(decode(data), decode_by_pillow(data, monkeypatch))


@needs_extra
@each_photo
@pytest.mark.parametrize("times", [1.6, 3.0])
def test_large_jpeg_decoded_at_an_eighth_is_near_the_full_decode(
    photo: Path, times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = Image.open(photo)
    side = int(min(image.size) / 8 / times)
    data = encode(image, quality=92)
    decoded, whole = [], jpeg.simplejpeg.decode_jpeg

    def decode(*arguments: object, **options: object) -> np.ndarray:
        decoded.append(whole(*arguments, **options))
        return decoded[-1]

    monkeypatch.setattr(jpeg.simplejpeg, "decode_jpeg", decode)
    found = shrink(data, side, side, "bicubic")

    assert decoded[0].shape[0] == -(-image.height // 8)
    expected = Image.open(io.BytesIO(data)).resize((side, side), Image.Resampling.BICUBIC)
    assert measure_distance(found, expected) < 2 * MEAN_DISTANCE


@needs_extra
@each_photo
@pytest.mark.parametrize("times", [1.1, 1.5, 2.0])
def test_small_jpeg_is_resized_as_pillow_does(photo: Path, times: float) -> None:
    data = encode(Image.open(photo).resize((round(100 * times), round(80 * times))), quality=92)
    filters: tuple[Interpolation, ...] = ("bilinear", "bicubic", "lanczos")
    for interpolation in filters:
        resample = Image.Resampling[interpolation.upper()]
        wanted = Image.open(io.BytesIO(data)).resize((100, 80), resample)
        assert measure_distance(shrink(data, 100, 80, interpolation), wanted) < MEAN_DISTANCE


@needs_extra
def test_jpeg_of_the_wanted_size_keeps_its_pixels() -> None:
    data = encode(Image.open(PHOTOS[0]).resize((48, 32)))
    wanted = Image.open(io.BytesIO(data))
    assert measure_distance(shrink(data, 48, 32, "bicubic"), wanted) < 0.1


@needs_extra
@pytest.mark.parametrize("frame", FRAMES)
def test_only_scaled_kinds_of_jpeg_reach_the_fast_decoder(
    frame: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for components in (1, 2, 3, 4):
        for bits in (8, 12):
            fast = Mock(return_value=np.zeros((48, 64, 3), np.uint8))
            monkeypatch.setattr(jpeg.simplejpeg, "decode_jpeg", fast)
            data = make_jpeg(frame, (64, 48), components, bits)
            for inserted in (b"", b"\xff\xfe\0\2", b"\xff"):
                shrink(data[:2] + inserted + data[2:], 8, 8, "bicubic")
            scaled = frame in (0xC0, 0xC1, 0xC2) and components in (1, 3) and bits == 8
            assert fast.call_count == 3 * scaled


def hide_behind(beginning: bytes) -> Change:
    """Puts `beginning` and a lossless JPEG, without its start, in place of a JPEG's frame."""
    return lambda plain, lossless: plain[: plain.index(b"\xff\xc0")] + beginning + lossless[2:]


@needs_extra
@pytest.mark.parametrize(
    "change",
    [
        lambda plain, lossless: plain[:2] + lossless[2:],
        lambda plain, lossless: plain[: plain.index(SCAN)] + lossless[2:],
        hide_behind(b"\xff\xd9\xff\xd8"),
        *map(hide_behind, (b"\0", b"\xff\xd0", b"\xff\0", b"\xff\xdc\0\0")),
        lambda plain, lossless: lossless[:89] + plain[plain.index(b"\xff\xc0") :],
    ],
)
def test_lossless_frame_after_another_marker_is_refused(change: Change) -> None:
    """A decoder that took it for a baseline one would end the process of this test."""
    data = change(PLAIN, make_jpeg(0xC3, (1024, 768)))
    for contract in (CONTRACT, CONTRACT.model_copy(update={"resize_mode": "crop"})):
        with pytest.raises(ImageError):
            decode_image(data, contract, 10**9)


@needs_extra
def test_pixels_of_another_size_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = Mock(return_value=np.zeros((47, 64, 3), np.uint8))
    monkeypatch.setattr(jpeg.simplejpeg, "decode_jpeg", fast)
    with pytest.raises(InvalidImage, match="size"):
        shrink(PLAIN, 8, 8, "bicubic")


@needs_extra
@pytest.mark.parametrize("frame", [0xC9, 0xCA])
def test_arithmetic_jpeg_is_decoded(frame: int) -> None:
    data = make_jpeg(frame, (640, 480))
    whole = jpeg.simplejpeg.decode_jpeg(data, strict=False)
    expected = Image.fromarray(whole).resize((64, 96), Image.Resampling.BICUBIC)
    assert measure_distance(decode(data), expected) < 2 * MEAN_DISTANCE


def test_arithmetic_jpeg_that_looks_cut_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end may be unwritten zeros, so that a cut is not found."""
    monkeypatch.setattr("service.images.decode.looks_cut", lambda _: True)
    assert decode(make_jpeg(0xC9, (64, 48))).shape == (96, 64, 3)


BLACK = Image.new("RGB", (64, 48))
PLAIN, PROGRESSIVE = encode(BLACK), encode(BLACK, progressive=True)
GREY = encode(Image.new("L", (64, 48)))
SCAN = b"\xff\xda\0"
IS_QUICK = {
    "colour": (PLAIN, True),
    "grey": (GREY, True),
    "2 MP": (encode(Image.new("RGB", (2048, 1024))), True),
    "over 2 MP": (encode(Image.new("RGB", (2048, 1025))), False),
    "progressive": (PROGRESSIVE, False),
    "scan of one": (PLAIN[: PLAIN.index(SCAN)] + GREY[GREY.index(SCAN) :], False),
    "thumbnail": (encode(BLACK, exif=b"Exif\0\0" + PLAIN), True),
    "profile": (encode(BLACK, icc_profile=bytes(9), restart_marker_blocks=1), True),
    "fill, and a picture after it": (PLAIN[:2] + b"\xff\xff" + PLAIN[2:] + PROGRESSIVE, True),
    "PNG": (make_photo(0, "PNG"), False),
    "long": (PLAIN + bytes(2**21), False),
    "cut": (PLAIN[:20], False),
    "frame cut": (PLAIN[: PLAIN.index(b"\xff\xc0") + 6], False),
    "frame of no size": (b"\xff\xd8\xff\xc0\0\2", False),
    "start only": (b"\xff\xd8", False),
    "empty": (b"", False),
}


def is_quick(data: bytes) -> bool:
    parsed = jpeg.parse_jpeg(data)
    return parsed is not None and parsed.is_quick


@pytest.mark.parametrize("name", IS_QUICK)
def test_jpeg_is_quick_when_baseline_and_up_to_two_megapixels(name: str) -> None:
    data, quick = IS_QUICK[name]
    assert is_quick(data) is quick


def hide_frame(photo: bytes, bare: bytes) -> bytes:
    """Inserts `bare`, and a small frame at the place that a length after `bare` leads to."""
    small = bytes.fromhex("ffc0 000b 08 0010 0010 01 011100  ffda 0008 01 0100 003f00")
    content = bytes(0xFFE0 - 4) + small
    block = b"\xff\xe0" + struct.pack(">H", 2 + len(content)) + content
    return photo[:2] + bare + block + photo[2:]


def test_frame_after_a_marker_without_length_is_ignored() -> None:
    for marker in (0x00, 0x01, 0xD0, 0xD7, 0xD8, 0xD9):
        assert not is_quick(hide_frame(PROGRESSIVE, bytes([0xFF, marker])))
    assert is_quick(hide_frame(PLAIN, b""))
    # Decoders ignore it, too.
    assert decode_image(hide_frame(PROGRESSIVE, b"\xff\xd0"), CONTRACT, 10**9).width == 64


@given(st.integers(0, len(PLAIN)), st.binary(max_size=8))
def test_damaged_header_raises_nothing(place: int, damage: bytes) -> None:
    spoilt = PLAIN[:place] + damage + PLAIN[place + len(damage) :]
    assert is_quick(spoilt) in (True, False)


@pytest.mark.parametrize(("mode", "components"), [("RGB", 3), ("L", 1), ("CMYK", 4)])
def test_header_is_the_one_that_decoders_find(mode: str, components: int) -> None:
    exif = b"Exif\0\0" + bytes(9)
    data = encode(Image.new(mode, (64, 48)), exif=exif, comment=b"x" * 99)
    parsed = parse(data)
    assert (parsed.width, parsed.height, parsed.components) == (64, 48, components)
    assert parsed.exif == exif
    stripped = parsed.strip()
    assert exif not in stripped
    assert b"x" * 99 not in stripped
    assert Image.open(io.BytesIO(stripped)).tobytes() == Image.open(io.BytesIO(data)).tobytes()
    np.testing.assert_array_equal(decode(parsed), decode(data))


several = pytest.mark.parametrize("photo", JPEGS.values(), ids=JPEGS)


@several
def test_picture_gets_its_end_back(photo: bytes) -> None:
    assert trim_jpeg(photo) is photo
    for rest in (END, b"", b"\xff", b"\xff\xff", b"\xff\xe0", END + b"more"):
        assert trim_jpeg(photo[:-2] + rest, is_suspect=True) == photo


@pytest.mark.parametrize("name", ["baseline", "restarts"])
def test_every_row_of_a_jpeg_counts(name: str) -> None:
    """Wherever the data end, also after a whole row or restart interval."""
    photo = JPEGS[name]
    for length in range(photo.index(b"\xff\xda") + 20, len(photo) - 4, 7):
        with pytest.raises(InvalidImage):
            trim_jpeg(photo[:length] + END, is_suspect=True)


def test_missing_scans_are_left_to_the_decoder_unless_it_warned() -> None:
    photo = JPEGS["progressive"]
    coarse = photo[: photo.rindex(b"\xff\xc4")] + END
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
