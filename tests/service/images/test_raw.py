"""RAW files: named by their first bytes, and read by their previews."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from service.bundle.card import InputContract
from service.errors import UnsupportedImage
from service.images import formats, raw
from service.images.decode import decode_image
from service.images.folders import list_photos
from service.images.formats import find_unsupported_format
from service.images.raw import load_photo
from tests.support.photos import CAMERA_TURNS, encode_picture, make_photo, make_picture
from tests.support.raw_files import make_dng, make_tiff

CONTRACT = InputContract(height=32, width=48, resize_mode="squash", interpolation="bilinear")
PICTURE = make_picture(3, 1200, 800)
NIKON = {271: "NIKON CORPORATION"}
NAMES = {
    "Canon (CR2)": b"II*\0\x10\0\0\0CR\2\0",
    "Canon (CR3)": b"\0\0\0\x18ftypcrx \0\0\0\1crx isom",
    "Canon (CRW)": b"II\x1a\0\0\0HEAPCCDR",
    "Fujifilm (RAF)": b"FUJIFILMCCD-RAW 0201",
    "Minolta (MRW)": b"\0MRM\0\0",
    "Nikon (NEF)": make_tiff({**NIKON, 254: (1,), 262: (2,)}),
    "Olympus (ORF)": b"IIRO\x08\0\0\0",
    "Panasonic (RW2)": b"IIU\0\x18\0\0\0",
    "Pentax (PEF)": make_tiff({271: "RICOH IMAGING COMPANY, LTD.", 262: (32803,)}),
    "Sigma (X3F)": b"FOVb\0\0\2\0",
    "Sony (ARW)": make_tiff({271: "SONY", 254: (1,)}),
}


@pytest.mark.parametrize("name", NAMES)
def test_raw_file_is_unsupported_by_maker_format_and_next_step(name: str) -> None:
    with pytest.raises(UnsupportedImage) as refused:
        decode_image(NAMES[name] + bytes(200), CONTRACT, 10**7)
    step = (
        "export it as JPEG, or take its embedded preview (exiftool -b -JpgFromRaw or -PreviewImage)"
    )
    assert f"The file's type is RAW of {name}: {step}." in str(refused.value.detail)


def test_other_tiff_is_a_tiff() -> None:
    developed = {**NIKON, 254: (0,), 262: (2,)}
    for tags in (developed, {271: "NIK"}, {271: (2**32 - 1,)}, {271: "Nobody"}, {}):
        data = make_tiff(tags)
        assert find_unsupported_format(data) == find_unsupported_format(data[:10]) == "TIFF"
    assert find_unsupported_format(make_tiff({50706: (1025,)})) == "RAW (DNG)"


def store(orientation: int, compression: int = 7, scale: float = 1) -> bytes:
    """Returns a DNG whose preview is `PICTURE`, as a camera of this orientation stores it."""
    turn = CAMERA_TURNS[orientation]
    stored = PICTURE.convert("RGB").resize((round(1200 * scale), round(800 * scale)))
    stored = stored if turn is None else stored.transpose(turn)
    data = encode_picture(stored, "JPEG") if compression == 7 else stored.tobytes()
    return make_dng(data, stored.size, orientation, compression)


@pytest.mark.parametrize("compression", [7, 1])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_preview_of_a_raw_file_is_read_upright(
    tmp_path: Path, orientation: int, compression: int
) -> None:
    pytest.importorskip("rawpy", reason="needs the extra raw")
    file = tmp_path / "a.DNG"
    file.write_bytes(store(orientation, compression))
    assert list_photos(str(tmp_path)) == (["a.DNG"], {})
    for limit in (-1, 40_000):  # the file is longer
        decoded = decode_image(load_photo(file, limit), CONTRACT, 10**7)
        assert (decoded.width, decoded.height) == (1200, 800)
        expected = PICTURE.convert("RGB").resize((48, 32), Image.Resampling.BILINEAR)
        assert np.abs(decoded.pixels - np.asarray(expected, np.int16)).mean() < 6


def test_raw_file_without_a_large_preview_is_refused_by_name(tmp_path: Path) -> None:
    pytest.importorskip("rawpy", reason="needs the extra raw")
    small, good = tmp_path / "small.dng", store(1)
    for data in (store(1, scale=0.8), store(1, 1, 0.5), good[:600], NAMES["Fujifilm (RAF)"]):
        small.write_bytes(data)
        with pytest.raises(UnsupportedImage, match="no preview of 1000 pixels or more can be read"):
            load_photo(small)
    small.write_bytes(good)
    assert load_photo(small).startswith(b"\xff\xd8")


def test_raw_file_without_the_extra_is_left_out_or_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (formats, raw):
        monkeypatch.setattr(module, "HAS_RAW", False)
    (tmp_path / "b.NEF").write_bytes(NAMES["Nikon (NEF)"])
    (tmp_path / "c.png").write_bytes(make_photo(1))
    names, left_out = list_photos(str(tmp_path))
    assert (names, left_out) == (["c.png"], {".nef: needs the extra raw": 1})
    with pytest.raises(UnsupportedImage, match=r"\(NEF\): it needs the extra raw"):
        load_photo(tmp_path / "b.NEF")
    assert load_photo(tmp_path / "c.png") == make_photo(1)
