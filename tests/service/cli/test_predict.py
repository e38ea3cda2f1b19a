"""`ml-decoder predict`: tables, JSON, CSV, overlays and odd file names."""

import csv
import io
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from service.bundle.reader import Bundle
from tests.e2e.server_process import ROOT, ServerProcess
from tests.service.cli.conftest import Run, assert_refused
from tests.support.photos import make_photo, make_picture


@pytest.fixture
def predict(run: Run, monkeypatch: pytest.MonkeyPatch, tiny_bundle: Bundle) -> Run:
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(tiny_bundle.path))
    return partial(run, "predict")


@pytest.fixture
def predict_mapped(predict: Run, monkeypatch: pytest.MonkeyPatch, mapped_bundle: Bundle) -> Run:
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(mapped_bundle.path))
    return predict


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Three files: good, broken, good; one name looks like rich markup."""
    paths = [tmp_path / name for name in ("a[red].png", "broken.png", "c.png")]
    for path, content in zip(paths, (make_photo(1), b"junk", make_photo(2)), strict=True):
        path.write_bytes(content)
    return paths


def test_predict_reports_a_broken_photo_and_shows_the_others(
    predict: Run, photos: list[Path]
) -> None:
    code, out, err = predict("--top-k", 2, *photos)
    assert code == 1
    assert "a[red].png" in out
    assert "c.png" in out
    assert "broken.png: The file is damaged or is not an image" in err
    assert predict(photos[0])[0] == 0


def test_predict_says_which_labels_of_a_registered_set_another_set_answers(
    predict: Run, run: Run, photos: list[Path], open_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(open_bundle.path))
    monkeypatch.setenv("ML_DECODER_LABEL_STORE", str(photos[0].parent / "labels.db"))
    assert run("labels", "add", "mine", "--label", "lamp", "--label", "yak")[0] == 0
    told = "labels answered by a set named before theirs: 1 of mine\n"
    for sets, err in ((("everyday", "mine"), told), (("mine", "everyday"), "")):
        flags = [part for name in sets for part in ("--label-set", name)]
        assert predict(*flags, photos[0])[::2] == (0, err)


def test_predict_explains_stars_below_the_table(predict: Run, photos: list[Path]) -> None:
    _, own, _ = predict("--include", "cat", "--top-k", 1, photos[0])
    assert "*" not in own
    _, given, _ = predict("--include", "cat", "--threshold", 0, photos[0])
    assert "0.000 *" in given
    assert given.splitlines()[-1] == "* not the label's own threshold"


def test_predict_says_that_no_label_is_found(predict: Run, photos: list[Path]) -> None:
    code, out, _ = predict("--threshold", 1, photos[0])
    assert code == 0
    assert out.splitlines() == [str(photos[0]), "no label reaches the threshold"]


def test_predict_writes_one_json_object_per_photo_in_order(
    predict: Run, photos: list[Path]
) -> None:
    flags = ("--json", "--include", "cat", "--include", "dog", "--threshold", "0")
    _, out, _ = predict(*flags, *photos)
    first, second, third = map(json.loads, out.splitlines())
    assert [record["photo"] for record in (first, second, third)] == list(map(str, photos))
    assert {label["label"] for label in first["labels"]} == {"cat", "dog"}
    assert second["error"]
    assert third["image"] == {"width": 48, "height": 32}


def test_predict_searches_folders_recursively(
    predict: Run, photos: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("no photo")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "d.PNG").write_bytes(make_photo(4))
    code, out, err = predict("--json", tmp_path)
    found = [json.loads(line)["photo"] for line in out.splitlines()]
    assert found == sorted([*map(str, photos), str(tmp_path / "below" / "d.PNG")])
    assert (code, err) == (1, "1 file left out (1 .txt)\n"), "a bar is only for who watches"


def test_predict_fails_for_a_folder_without_photos(predict: Run, tmp_path: Path) -> None:
    assert predict(tmp_path) == (2, "", f"ml-decoder: {tmp_path} contains no photos\n")


def test_predict_writes_a_csv_row_per_label_and_failure(predict: Run, photos: list[Path]) -> None:
    flags = ("--format", "csv", "--top-k", "2")
    code, out, _ = predict(*flags, *photos)
    rows = list(csv.DictReader(out.splitlines()))
    assert code == 1
    assert [Path(row["photo"]).name for row in rows] == [
        *("a[red].png", "a[red].png", "broken.png", "c.png", "c.png")
    ]
    assert rows[2]["error"] == "The file is damaged or is not an image"
    assert all(0 <= float(row["score"]) <= 1 for row in rows if not row["error"])


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", ""])
def test_predict_writes_no_formula_and_valid_quotes_into_csv(
    predict: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f'{start}1, "b"\r\nc.png'
    Path(name).write_bytes(make_photo())
    _, out, _ = predict("--format", "csv", "--top-k", 1, "--", name)
    rows = list(csv.reader(io.StringIO(out, newline="")))
    assert [row[0] for row in rows] == ["photo", f"'{name}" if start else name]


def test_predict_names_photos_that_cannot_be_read(
    predict: Run, photos: list[Path], tmp_path: Path
) -> None:
    photos[1].unlink()
    (tmp_path / "dangling.jpg").symlink_to("gone.jpg")
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    code, out, err = predict("--format", "csv", "--top-k", 1, tmp_path)
    rows = {Path(row["photo"]).name: row["error"] for row in csv.DictReader(out.splitlines())}
    assert (code, err) == (1, "")
    assert rows == {
        "a[red].png": "",
        "c.png": "",
        "dangling.jpg": "No such file or directory",
        "loop.jpg": "Too many levels of symbolic links",
        "pipe.jpg": "Not a regular file",
    }
    code, _, err = predict(tmp_path / "none.png", tmp_path / "pipe.jpg")
    assert (code, "none.png: No such file or directory" in err) == (1, True)
    assert predict(photos[0])[0] == 0


def test_predict_counts_folders_and_files_that_it_leaves_out(
    predict: Run, photos: list[Path], tmp_path: Path
) -> None:
    for name in ("@eaDir/c.png/THUMB.jpg", "sea/.thumbnails/d.png", "._c.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"junk")
    code, out, err = predict("--json", tmp_path, "--exclude-path", "broken.*")
    assert [json.loads(line)["photo"] for line in out.splitlines()] == [
        str(photos[0]), str(photos[2])
    ]  # fmt: skip
    kinds = "1 .thumbnails/; 1 @eaDir/; 1 excluded; 1 hidden"
    assert (code, err) == (0, f"2 files and 2 folders left out ({kinds})\n")


def test_predict_finds_photos_by_their_content_without_the_extra_heif(
    tiny_bundle: Bundle, tmp_path: Path
) -> None:
    """In a process where pillow-heif is not installed."""
    photos = [tmp_path / name for name in ("IMG_1.HEIC", "IMG_2", "IMG_3.insp")]
    for photo in photos:
        photo.write_bytes(make_photo(1, "JPEG"))
    (tmp_path / "IMG_4.heic").write_bytes(b"\0\0\0\x1cftypheic" + bytes(99))
    arguments = ("predict", "--json", "--bundle", str(tiny_bundle.path), str(tmp_path))
    command = [sys.executable, *ServerProcess.program, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["photo"] for answer in answers] == list(map(str, photos))
    assert all(answer["labels"] == answers[0]["labels"] for answer in answers)
    assert done.stderr == "1 file left out (1 .heic: needs the extra heif)\n"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--include", "unicorn"), "A label is unknown: 'unicorn'."),
        (("--top-k", "0"), "top_k: Input should be greater than or equal to 1"),
        (("--threshold", "often"), "threshold: Input should be a number from 0 to 1"),
        (("--device", "toaster"), "ML_DECODER_DEVICE: Input should be 'auto', 'cpu', "),
        (("--bundle", "/none"), "the folder does not exist; set --bundle"),
        (("--topk", "3"), "No such option: --topk"),
        (("--format", "xml"), "'xml' is not one of 'table', 'json', 'csv'"),
        (("--out", "maps"), "--out needs --explain"),
        (("--exclude-path", ""), "it is empty"),
    ],
)
def test_predict_writes_one_line_for_an_invalid_argument(
    predict: Run, photos: list[Path], flags: tuple[str, str], reason: str
) -> None:
    assert_refused(predict, reason, *flags, photos[0])


@pytest.mark.parametrize("form", ["csv", "table"])
@pytest.mark.parametrize(
    ("encoding", "written"),
    [("utf-8", [b"1\xff.png", "2日.png".encode()]), ("ascii", [rb"1\udcff.png", rb"2\u65e5.png"])],
)
def test_predict_writes_file_names_that_stdout_cannot_encode(
    tiny_bundle: Bundle, tmp_path: Path, form: str, encoding: str, written: list[bytes]
) -> None:
    for name in (b"1\xff.png", "2日.png".encode()):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(make_photo())
    flags = ("--bundle", tiny_bundle.path, "--device", "cpu", "--format", form)
    found = subprocess.run(
        [sys.executable, "-m", "service.cli", "predict", *flags, tmp_path],
        env={**os.environ, "PYTHONIOENCODING": f"{encoding}:strict", "COLUMNS": "200"},
        capture_output=True,
    )
    assert (found.returncode, found.stderr) == (0, b"")
    assert all(name in found.stdout for name in written)


def test_predict_does_not_wrap_a_long_path(predict: Run, tmp_path: Path) -> None:
    photo = tmp_path / f"{'long ' * 40}.png"
    photo.write_bytes(make_photo())
    _, out, _ = predict(photo)
    assert out.splitlines()[0] == str(photo)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A photo that is stored sideways: its orientation turns 48 x 32 upright to 32 x 48."""
    path = tmp_path / "photo.jpg"
    picture = make_picture(1)
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(path, exif=exif)
    return path


def test_explain_writes_overlays_beside_the_photo(predict_mapped: Run, photo: Path) -> None:
    flags = ("--explain", "--json", "--top-k", 2, "--candidate-labels", "a/b ../c")
    code, out, err = predict_mapped(*flags, photo)
    assert (code, err) == (0, f"1 map written to {photo.parent}\n")
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


def test_explain_draws_the_photo_as_the_model_sees_it(predict_mapped: Run, tmp_path: Path) -> None:
    grey = np.full((32, 48), 0x4000, np.uint16)  # 64 of 255
    Image.fromarray(grey).save(tmp_path / "deep.png")
    clear = Image.new("RGBA", (48, 32), (0, 0, 0, 0))
    clear.save(tmp_path / "clear.png")
    make_picture(1).save(tmp_path / "turned.jpg", xmp=_SIDEWAYS_IN_XMP)  # which is not looked at
    flags = ("--explain", "--json", "--candidate-labels", "x", "--top-k", 1)
    code, _, err = predict_mapped(*flags, tmp_path)
    assert (code, err) == (0, f"3 maps written to {tmp_path}\n")
    drawn = {}
    for path in tmp_path.glob("*.map-1-x.jpg"):
        with Image.open(path) as picture:
            drawn[path.name.partition(".")[0]] = np.asarray(picture)
    assert {pixels.shape for pixels in drawn.values()} == {(32, 48, 3)}
    # With the strongest colour of a map, red 0.7 x 255, over all of it, at most.
    assert drawn["deep"][..., 0].max() < 215
    assert drawn["clear"][..., 2].min() > 200


def test_explain_ignores_the_overlays_of_an_earlier_run(predict_mapped: Run, photo: Path) -> None:
    (photo.parent / "album.jpg").mkdir()
    flags = ("--explain", "--json", "--candidate-labels", "x")
    first = predict_mapped(*flags, photo.parent)
    assert len(list(photo.parent.iterdir())) == 3
    second = predict_mapped(*flags, photo.parent)
    assert (first[0], second[0]) == (0, 0)
    assert [json.loads(line)["photo"] for line in second[1].splitlines()] == [str(photo)]
    assert len(list(photo.parent.iterdir())) == 3


def test_predict_writes_no_overlays_without_explain(predict_mapped: Run, photo: Path) -> None:
    code, out, _ = predict_mapped("--json", photo)
    assert code == 0
    assert all("map" not in label for label in json.loads(out)["labels"])
    assert list(photo.parent.iterdir()) == [photo]


def test_explain_fails_for_a_bundle_without_maps(predict: Run, photo: Path) -> None:
    record = (
        "ml-decoder: This model has no maps of these labels: 'trained': ask for these label sets "
        "without `explain`.\n"
    )
    assert predict("--explain", photo) == (2, "", record)
    assert predict(photo)[0] == 0


def test_explain_reports_a_photo_whose_overlays_cannot_be_written(
    predict_mapped: Run, photo: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.jpg"
    other.write_bytes(photo.read_bytes())
    (tmp_path / "photo.jpg.map-1-cat.jpg").mkdir()  # a folder has the picture's name
    flags = ("--explain", "--include", "cat", "--top-k", 1)
    code, _, err = predict_mapped(*flags, photo, other)
    assert code == 1
    assert "photo.jpg: its maps cannot be written" in err.replace("\n", "")
    assert (tmp_path / "other.jpg.map-1-cat.jpg").is_file()


_EXPLAIN = ("--explain", "--json", "--candidate-labels", "x")


def test_explain_writes_into_the_folders_of_out(
    predict_mapped: Run, photo: Path, tmp_path: Path
) -> None:
    below = tmp_path / "sea" / "photo.jpg"
    below.parent.mkdir()
    below.write_bytes(photo.read_bytes())
    out = tmp_path / "maps"
    code, _, err = predict_mapped(*_EXPLAIN, tmp_path, "--out", out)
    assert (code, err) == (0, f"2 maps written to {out}, {out / 'sea'}\n")
    written = {path.relative_to(out).as_posix() for path in out.rglob("*.jpg")}
    assert written == {"photo.jpg.map-1-x.jpg", "sea/photo.jpg.map-1-x.jpg"}
    assert list(below.parent.iterdir()) == [below]

    # Two folders keep their names below the folder that they share.
    assert predict_mapped(*_EXPLAIN, below, photo, "--out", out / "two")[0] == 0
    assert len(list((out / "two").rglob("*.jpg"))) == 2
    reason = f"--out {photo}: File exists"
    assert_refused(predict_mapped, reason, *_EXPLAIN, below, "--out", photo)


def test_explain_writes_nothing_through_a_symbolic_link(
    predict_mapped: Run, photo: Path, tmp_path: Path
) -> None:
    real = tmp_path / "real" / "deep"
    real.mkdir(parents=True)
    photo = photo.rename(real / photo.name)
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path / "real")
    reason = f"{linked} is a symbolic link: --explain needs --out FOLDER"
    for given in (linked, tmp_path):
        assert_refused(predict_mapped, reason, *_EXPLAIN, given)
    assert list(real.iterdir()) == [photo]

    code, _, err = predict_mapped(*_EXPLAIN, linked, "--out", tmp_path / "maps")
    assert (code, err) == (0, f"1 map written to {tmp_path / 'maps' / 'deep'}\n")
    assert list(real.iterdir()) == [photo]
    # A link above the given folder is part of its address.
    assert predict_mapped(*_EXPLAIN, linked / "deep")[0] == 0
    assert len(list(real.iterdir())) == 2


def test_explain_replaces_a_link_that_has_the_name_of_a_picture(
    predict_mapped: Run, photo: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("kept")
    picture = tmp_path / "photo.jpg.map-1-x.jpg"
    picture.symlink_to(precious)
    assert predict_mapped(*_EXPLAIN, photo)[0] == 0
    assert precious.read_text() == "kept"
    assert not picture.is_symlink()
