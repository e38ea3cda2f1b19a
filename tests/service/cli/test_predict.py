"""`ml-decoder predict`: tables, JSON, CSV, overlays and odd file names."""

import csv
import io
import json
import os
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from service.bundle.reader import Bundle
from tests.service.cli.conftest import Run, assert_refused
from tests.support.photos import make_exif, make_photo, make_picture

DAMAGED = "The file is damaged or is not an image"


@pytest.fixture
def predict(run: Run, monkeypatch: pytest.MonkeyPatch, tiny_bundle: Bundle) -> Run:
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(tiny_bundle.path))
    return partial(run, "predict")


@pytest.fixture
def explain(predict: Run, monkeypatch: pytest.MonkeyPatch, mapped_bundle: Bundle) -> Run:
    """Runs `predict --explain` with one candidate label, `x`."""
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(mapped_bundle.path))
    return partial(predict, "--explain", "--json", "--candidate-labels", "x")


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Three files: good, broken, good; one name looks like rich markup."""
    paths = [tmp_path / name for name in ("a[red].png", "broken.png", "c.png")]
    for path, content in zip(paths, (make_photo(1), b"junk", make_photo(2)), strict=True):
        path.write_bytes(content)
    return paths


def test_predict_says_which_labels_of_a_registered_set_another_set_answers(
    run_open: Run, photo: Path
) -> None:
    assert run_open("labels", "add", "mine", "--label", "lamp", "--label", "yak")[0] == 0
    told = "labels answered by a set named before theirs: 1 of mine\n"
    for sets, err in ((("everyday", "mine"), told), (("mine", "everyday"), "")):
        flags = [part for name in sets for part in ("--label-set", name)]
        assert run_open("predict", *flags, photo)[::2] == (0, err)


def test_predict_explains_stars_below_the_table(predict: Run, photo: Path) -> None:
    _, calibrated, _ = predict("--include", "cat", "--top-k", 1, photo)
    assert "*" not in calibrated
    _, given, _ = predict("--include", "cat", "--threshold", 0, photo)
    assert "0.000 *" in given
    assert given.splitlines()[-1] == "* not the label's own threshold"


def test_predict_does_not_wrap_a_long_path_and_says_that_no_label_is_found(
    predict: Run, photo: Path
) -> None:
    photo = photo.rename(photo.with_name(f"{'long ' * 40}.png"))
    code, out, _ = predict("--threshold", 1, photo)
    assert (code, out.splitlines()) == (0, [str(photo), "no label reaches the threshold"])


def test_predict_writes_one_json_object_per_photo_in_order(
    predict: Run, photos: list[Path]
) -> None:
    flags = ("--json", "--include", "cat", "--include", "dog", "--threshold", "0")
    _, out, _ = predict(*flags, *photos)
    first, second, third = map(json.loads, out.splitlines())
    assert [record["photo"] for record in (first, second, third)] == list(map(str, photos))
    assert {label["label"] for label in first["labels"]} == {"cat", "dog"}
    assert second["error"] == DAMAGED
    assert third["image"] == {"width": 48, "height": 32}


def test_predict_searches_folders_and_counts_what_it_leaves_out(
    predict: Run, photos: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").touch()
    code, out, err = predict("--json", tmp_path, "--exclude-path", "broken.*")
    assert [json.loads(line)["photo"] for line in out.splitlines()] == [*map(str, photos[::2])]
    assert (code, err) == (0, "2 files left out (1 .txt; 1 excluded)\n")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", ""])
def test_predict_writes_no_formula_and_valid_quotes_into_csv(
    predict: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f'{start}1, "b"\r\nc.png'
    Path(name).write_bytes(make_photo())
    _, out, _ = predict("--format", "csv", "--top-k", 1, "--", name)
    rows = list(csv.reader(io.StringIO(out, newline="")))
    shown = name.encode("unicode_escape").decode()
    assert [row[0] for row in rows] == ["photo", f"'{shown}" if start in {*"=+-@"} else shown]


def test_no_control_character_of_a_file_name_reaches_a_terminal(
    predict: Run, explain: Run, tmp_path: Path
) -> None:
    names = ("a[red]\x1b\n.png", "b\r\x07.png")  # one looks like rich markup
    good, bad = (tmp_path / "d\x1b[2J\x9b" / name for name in names)
    (good.parent / ".\x1b").mkdir(parents=True)
    good.write_bytes(make_photo(1))
    bad.write_bytes(b"<html>")
    for command, flags in ((predict, ()), (predict, ("--format", "csv")), (explain, ())):
        for photos in ((good, bad), (good.parent,), (good.parent / "\x1b" / "none.jpg",)):
            _, out, err = command(*flags, *photos)
            assert not {"\x1b", "\x9b", "\x07"} & {*out, *err}
            assert r"d\x1b[2J\x9b" in out + err or command is explain
    code, out, err = predict(good, bad)
    assert (code, r"a[red]\x1b\n.png" in out) == (1, True)
    assert rf"b\r\x07.png: {DAMAGED}. It is a web page" in err
    assert predict("--exclude-path", "*", good.parent)[2].endswith(r"1 .\x1b/)" + "\n")
    assert json.loads(predict("--json", good)[1])["photo"] == str(good)


@pytest.mark.usefixtures("photos")
def test_predict_writes_a_csv_row_per_label_and_failure(predict: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    code, out, err = predict("--format", "csv", "--top-k", 2, tmp_path, tmp_path / "none.png")
    rows = list(csv.DictReader(out.splitlines()))
    assert (code, err) == (1, "")
    assert [(Path(row["photo"]).name, row["error"]) for row in rows] == [
        *[("a[red].png", "")] * 2,
        ("broken.png", DAMAGED),
        *[("c.png", "")] * 2,
        ("pipe.jpg", "Not a regular file"),
        ("none.png", "No such file or directory"),
    ]
    assert all(0 <= float(row["score"]) <= 1 for row in rows if not row["error"])


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--include", "unicorn"), "A label is unknown: 'unicorn'."),
        (("--top-k", "0"), "top_k: Input should be greater than or equal to 1"),
        (("--threshold", "often"), "threshold: Input should be a number from 0 to 1"),
        (("--device", "toaster"), "ML_DECODER_DEVICE: Input should be 'auto', 'cpu', "),
        (("--bundle", "/none"), "the folder does not exist; set --bundle"),
        (("--topk", "3"), "No such option: --topk"),
        (("--candidate-label", "yak"), "No such option: --candidate-label"),
        (("--format", "xml"), "'xml' is not one of 'table', 'json', 'csv'"),
        (("--out", "maps"), "--out needs --explain"),
        (("--explain", "--json"), "This model has no maps of these labels: 'trained': ask"),
        (("--exclude-path", ""), "it is empty"),
        (("--threshold", "recall"), "purpose: 'trained': measure `recall` with `ml-decoder export"),
    ],
)
def test_predict_writes_one_line_for_an_invalid_argument(
    predict: Run, photo: Path, flags: tuple[str, str], reason: str
) -> None:
    assert_refused(predict, reason, *flags, photo)


@pytest.mark.parametrize(
    ("form", "encoding", "written"),
    [
        ("csv", "utf-8", [b"1\xff.png", "2日.png".encode()]),
        ("table", "ascii", [rb"1\udcff.png", rb"2\u65e5.png"]),
    ],
)
def test_predict_writes_file_names_that_stdout_cannot_encode(
    predict: Run, tmp_path: Path, form: str, encoding: str, written: list[bytes]
) -> None:
    for name in (b"1\xff.png", "2日.png".encode()):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(make_photo())
    out = io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(out, encoding, "strict")) as stdout:
        assert predict("--format", form, tmp_path)[::2] == (0, "")
        stdout.flush()
    assert all(name in out.getvalue() for name in written)


def test_explain_writes_overlays_into_the_folder_of_the_photo(explain: Run, tmp_path: Path) -> None:
    turned = tmp_path / "photo.jpg"
    make_picture(1).save(turned, exif=make_exif(6))  # 48 x 32, upright 32 x 48
    code, out, err = explain("--candidate-labels", "a/b ../c", "--top-k", 1, turned)
    assert (code, err) == (0, f"1 map written to {turned.parent}\n")
    (label,) = json.loads(out)["labels"]
    (written,) = turned.parent.glob("photo.jpg.map-*")
    assert label["overlay"] == str(written)
    assert written.name in ("photo.jpg.map-1-a_b_c.jpg", "photo.jpg.map-1-x.jpg")
    assert len(label["map"]) == 4
    with Image.open(written) as picture, Image.open(turned) as original:
        assert picture.size == (32, 48)
        upright = original.transpose(Image.Transpose.ROTATE_270)
        changed = np.abs(np.asarray(picture, int) - np.asarray(upright, int))
    assert changed.max() > 60, "the map is to be seen"


def test_explain_ignores_the_overlays_of_an_earlier_run(explain: Run, photo: Path) -> None:
    (photo.parent / "album.jpg").mkdir()
    for _ in range(2):
        code, out, _ = explain(photo.parent)
        assert (code, [json.loads(line)["photo"] for line in out.splitlines()]) == (0, [str(photo)])
        assert len(list(photo.parent.iterdir())) == 3


def test_explain_reports_what_cannot_be_written_and_replaces_a_link(
    explain: Run, photo: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.png"
    other.write_bytes(photo.read_bytes())
    (tmp_path / "a.png.map-1-x.jpg").mkdir()  # a folder has the picture's name
    (tmp_path / "precious").write_text("kept")
    picture = tmp_path / "other.png.map-1-x.jpg"
    picture.symlink_to(tmp_path / "precious")
    code, out, _ = explain(photo, other)
    assert (code, "a.png" in out) == (1, True)
    assert "its maps cannot be written: Is a directory" in out
    assert (picture.is_file(), picture.is_symlink()) == (True, False)
    assert (tmp_path / "precious").read_text() == "kept"


def test_explain_writes_into_the_folders_of_out(explain: Run, photo: Path, tmp_path: Path) -> None:
    below = tmp_path / "sea" / "a.png"
    below.parent.mkdir()
    below.write_bytes(photo.read_bytes())
    out = tmp_path / "maps"
    code, _, err = explain(tmp_path, "--out", out)
    assert (code, err) == (0, f"2 maps written to {out}, {out / 'sea'}\n")
    written = {path.relative_to(out).as_posix() for path in out.rglob("*.jpg")}
    assert written == {"a.png.map-1-x.jpg", "sea/a.png.map-1-x.jpg"}
    assert list(below.parent.iterdir()) == [below]

    # Two folders keep their names below the folder that they share.
    assert explain(below, photo, "--out", out / "two")[0] == 0
    assert len(list((out / "two").rglob("*.jpg"))) == 2
    assert_refused(explain, f"--out {photo}: File exists", below, "--out", photo)


def test_explain_writes_nothing_through_a_symbolic_link(
    explain: Run, photo: Path, tmp_path: Path
) -> None:
    real = tmp_path / "real" / "deep"
    real.mkdir(parents=True)
    photo = photo.rename(real / photo.name)
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path / "real")
    reason = f"{linked} is a symbolic link: --explain needs --out FOLDER"
    for given in (linked, tmp_path):
        assert_refused(explain, reason, given)
    code, _, err = explain(linked, "--out", tmp_path / "maps")
    assert (code, err) == (0, f"1 map written to {tmp_path / 'maps' / 'deep'}\n")
    assert list(real.iterdir()) == [photo]
    # A link above the given folder is part of its address.
    assert explain(linked / "deep")[0] == 0
    assert len(list(real.iterdir())) == 2


def test_predict_shows_words_of_labels_if_asked(
    predict: Run, worded_bundle: Bundle, photo: Path
) -> None:
    predict = partial(predict, photo, "--bundle", worded_bundle.path, "--top-k", 9)
    words = partial(predict, "--lang", "de", "--parents", "--include", "KATZE", "--include", "tree")
    code, out, err = words("--format", "csv")
    head, *rows = ([row[1], *row[-3:]] for row in csv.reader(out.splitlines()))
    assert (code, err, head) == (0, "KATZE: cat\n", ["label", "translation", "parents", "error"])
    assert sorted(rows) == [["cat", "Katze", "pet;animal", ""], ["tree", "", "", ""]]
    assert "cat   │ Katze       │ Tier > pet │" in words()[1]
    assert "translation" not in predict()[1] + predict("--format", "csv")[1]
    labels = json.loads(predict("--json", "--parent", "animal", "--parents")[1])["labels"]
    assert {label["label"]: label["parents"][0] for label in labels} == {"cat": "pet", "dog": "pet"}
    assert_refused(predict, "Known languages: 'de', 'fr'.", "--lang", "it")
    assert_refused(predict, "did you mean 'animal'?", "--parent", "animl")
    assert predict("--lang", "fr", "--parent", "animal")[0] == 0


def test_predict_and_info_show_categories_if_labels_have_some(
    predict: Run, run: Run, categorised_bundle: Bundle, photo: Path
) -> None:
    assert "categor" not in predict(photo)[1] + predict("--format", "csv", photo)[1]
    tagged = partial(predict, "--bundle", categorised_bundle.path, "--threshold", "0")
    assert "category" in tagged(photo)[1]
    rows = list(csv.DictReader(tagged("--format", "csv", photo)[1].splitlines()))
    assert list(rows[0])[-2:] == ["category", "error"]
    categories = {row["label"]: row["category"] for row in rows}
    assert (categories["dog"], categories["car"], categories["tree"]) == ("rating", "vehicle", "")
    rating = json.loads(tagged("--json", "--category", "rating", photo)[1])["labels"]
    assert {label["label"] for label in rating} == {"dog", "person"}
    assert_refused(predict, "The labels of 'trained' have no categories", "--category", "x", photo)
    shown = run("info", categorised_bundle.path)[1]
    assert "2 labels" in shown
    assert "category" in shown
