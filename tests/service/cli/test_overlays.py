"""`predict --explain` writes one picture a label beside the photo."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from service.bundle.reader import Bundle
from tests.service.cli.conftest import Run
from tests.support.photos import make_picture


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A photo that is stored sideways: its orientation turns 48 x 32 upright to 32 x 48."""
    path = tmp_path / "photo.jpg"
    picture = make_picture(1)
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(path, exif=exif)
    return path


def test_pictures_of_the_labels_lie_beside_the_photo(
    run: Run, mapped_bundle: Bundle, photo: Path
) -> None:
    flags = ("--explain", "--json", "--top-k", 2, "--candidate-label", "a/b ../c")
    code, out, err = run("predict", "--bundle", mapped_bundle.path, *flags, photo)
    assert (code, err) == (0, "")
    labels = json.loads(out)["labels"]
    (written,) = sorted(photo.parent.glob("photo.jpg.map-*"))
    assert [label["overlay"] for label in labels] == [str(written)]
    assert written.name == "photo.jpg.map-1-a_b_c.jpg"
    assert len(labels[0]["map"]) == 4
    with Image.open(written) as picture, Image.open(photo) as original:
        assert picture.size == (32, 48)
        turned = original.transpose(Image.Transpose.ROTATE_270)
        changed = np.abs(np.asarray(picture, int) - np.asarray(turned, int))
    assert changed.max() > 60, "the map is to be seen"


_SIDEWAYS_IN_XMP = b"""<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/></rdf:RDF>"""


def test_photo_is_drawn_as_the_model_sees_it(
    run: Run, mapped_bundle: Bundle, tmp_path: Path
) -> None:
    grey = np.full((32, 48), 0x4000, np.uint16)  # 64 of 255
    Image.fromarray(grey).save(tmp_path / "deep.png")
    clear = Image.new("RGBA", (48, 32), (0, 0, 0, 0))
    clear.save(tmp_path / "clear.png")
    make_picture(1).save(tmp_path / "turned.jpg", xmp=_SIDEWAYS_IN_XMP)  # which is not looked at
    flags = ("--explain", "--json", "--candidate-label", "x", "--top-k", 1)
    code, _, err = run("predict", "--bundle", mapped_bundle.path, *flags, tmp_path)
    assert (code, err) == (0, "")
    drawn = {}
    for path in tmp_path.glob("*.map-1-x.jpg"):
        with Image.open(path) as picture:
            drawn[path.name.partition(".")[0]] = np.asarray(picture)
    assert {pixels.shape for pixels in drawn.values()} == {(32, 48, 3)}
    # With the strongest colour of a map, red 0.7 x 255, over all of it, at most.
    assert drawn["deep"][..., 0].max() < 215
    assert drawn["clear"][..., 2].min() > 200


def test_folder_is_labelled_again_without_the_pictures_of_the_first_time(
    run: Run, mapped_bundle: Bundle, photo: Path
) -> None:
    (photo.parent / "album.jpg").mkdir()
    flags = ("--bundle", mapped_bundle.path, "--explain", "--json", "--candidate-label", "x")
    first = run("predict", *flags, photo.parent)
    assert len(list(photo.parent.iterdir())) == 3
    second = run("predict", *flags, photo.parent)
    assert (first[0], second[0]) == (0, 0)
    assert [json.loads(line)["photo"] for line in second[1].splitlines()] == [str(photo)]
    assert len(list(photo.parent.iterdir())) == 3


def test_without_explain_nothing_is_written(run: Run, mapped_bundle: Bundle, photo: Path) -> None:
    code, out, _ = run("predict", "--bundle", mapped_bundle.path, "--json", photo)
    assert code == 0
    assert all("map" not in label for label in json.loads(out)["labels"])
    assert list(photo.parent.iterdir()) == [photo]


def test_bundle_without_maps_is_one_line(run: Run, tiny_bundle: Bundle, photo: Path) -> None:
    code, out, err = run("predict", "--bundle", tiny_bundle.path, "--explain", photo)
    assert (code, out) == (2, "")
    assert err == "ml-decoder: This model has no maps of these labels\n"
    assert run("predict", "--bundle", tiny_bundle.path, photo)[0] == 0


def test_photo_whose_maps_cannot_be_written_costs_only_itself(
    run: Run, mapped_bundle: Bundle, photo: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.jpg"
    other.write_bytes(photo.read_bytes())
    (tmp_path / "photo.jpg.map-1-cat.jpg").mkdir()  # a folder has the picture's name
    flags = ("--explain", "--include", "cat", "--top-k", 1)
    code, _, err = run("predict", "--bundle", mapped_bundle.path, *flags, photo, other)
    assert code == 1
    assert "photo.jpg: its maps cannot be written" in err.replace("\n", "")
    assert (tmp_path / "other.jpg.map-1-cat.jpg").is_file()
