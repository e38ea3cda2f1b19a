"""The photos of a folder are the same for every command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.errors import StartError
from service.images.folders import (
    LeftOut,
    describe_left_out,
    find_photos,
    list_photos,
    read_photo,
    split_photos,
)
from service.images.formats import FORMATS
from tests.support.photos import make_photo

_NOBODY = 65534


def make_files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


HIDDEN = ("._a.jpg", ".git/a.jpg", ".git/b.jpg", ".git/c/d.jpg", "a.jpg")
STORED = ("a.jpg", "@eaDir/a.jpg", "@eaDir/b.jpg", "sea/.x/y.jpg", "sea/b.txt", "sea/c_small.jpg")
MIXED = ("b/2.JPG", "a.png", "b/1.webp", "notes.txt", "b/1.webp.map-1-cat.jpg", "a.png.xmp")
CAMERAS = ["a.INSP", "b.apng", "c.jfif", "d.jpe", "e.mpo"]


@pytest.mark.parametrize(
    ("names", "found", "left_out"),
    [
        (MIXED, ["a.png", "b/1.webp", "b/2.JPG"], {".txt": 1}),
        (HIDDEN, ["a.jpg"], {"hidden": 1, ".git/": 1}),
        (STORED, ["a.jpg"], {"@eaDir/": 1, ".x/": 1, ".txt": 1, "excluded": 1}),
        (CAMERAS, CAMERAS, {}),
        pytest.param(
            *(("a.HIF",), ["a.HIF"], {}),
            marks=pytest.mark.skipif("HEIF" not in FORMATS, reason="pillow-heif is not installed"),
        ),
    ],
    ids=["mixed", "hidden", "stored", "cameras", "HIF"],
)
def test_folder_and_object_store_have_the_same_photos(
    tmp_path: Path, names: tuple[str, ...], found: list[str], left_out: dict[str, int]
) -> None:
    make_files(tmp_path, *names)
    (tmp_path / "folder.jpg").mkdir()  # only a folder
    exclude = ["*_small.*"]
    assert list_photos(str(tmp_path), exclude) == (found, left_out)
    assert find_photos([tmp_path], exclude) == ([tmp_path / name for name in found], left_out)
    assert split_photos(names, lambda _: b"", exclude) == (found, left_out)


@pytest.mark.parametrize("folder", ["@eaDir", ".thumbnails", "__MACOSX", "@__thumb", ".@__thumb"])
def test_folders_of_thumbnails_are_left_out_and_counted(tmp_path: Path, folder: str) -> None:
    make_files(tmp_path, f"{folder}/a.jpg/b.jpg", f"sea/{folder}/._c.jpg", "sea/c.jpg")
    assert list_photos(str(tmp_path)) == (["sea/c.jpg"], {f"{folder}/": 2})
    # The folder itself may be asked for.
    assert list_photos(str(tmp_path / folder)) == (["a.jpg/b.jpg"], {})


@pytest.mark.parametrize(
    ("pattern", "found", "left_out"),
    [
        ("*_small.jpg", ["a.jpg", "sea/b.jpg", "sea/old/a.jpg"], {"excluded": 1}),
        ("old", ["a.jpg", "a_small.jpg", "sea/b.jpg"], {"old/": 1}),
        ("old/", ["a.jpg", "a_small.jpg", "sea/b.jpg"], {"old/": 1}),
        ("sea/*", ["a.jpg", "a_small.jpg"], {"old/": 1, "excluded": 1}),
        ("A.jpg", ["a.jpg", "a_small.jpg", "sea/b.jpg", "sea/old/a.jpg"], {}),
        ("a.jpg", ["a_small.jpg", "sea/b.jpg"], {"excluded": 2}),
        ("/a.jpg", ["a.jpg", "a_small.jpg", "sea/b.jpg", "sea/old/a.jpg"], {}),
    ],
)
def test_pattern_leaves_out_files_and_folders(
    tmp_path: Path, pattern: str, found: list[str], left_out: dict[str, int]
) -> None:
    make_files(tmp_path, "a.jpg", "a_small.jpg", "sea/b.jpg", "sea/old/a.jpg")
    assert list_photos(str(tmp_path), ["*.txt", pattern]) == (found, left_out)


@pytest.mark.parametrize("name", ["IMG_1.HEIC", "IMG_1.hif", "IMG_1", "IMG 2.5 km"])
def test_content_decides_if_the_ending_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    formats = ("JPEG", "PNG", "WEBP", "GIF")
    monkeypatch.setattr("service.images.formats.ENDINGS", (".jpg",))
    monkeypatch.setattr("service.images.formats.FORMATS", formats)
    (tmp_path / "b.heic").write_bytes(b"\0\0\0\x1cftypheic" + bytes(99))
    (tmp_path / "c.heif").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "README").write_text("BMP and GIF")
    left_out = {
        ".heic: needs the extra heif": 1, ".heif: needs the extra heif": 1, "without ending": 2
    }  # fmt: skip
    for file_format in formats:
        (tmp_path / name).write_bytes(make_photo(0, file_format))
        assert list_photos(str(tmp_path)) == ([name], left_out)


def test_linked_folder_is_searched_once(tmp_path: Path) -> None:
    make_files(tmp_path, "here/a.jpg", "elsewhere/b.jpg")
    (tmp_path / "here" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "here" / "back").symlink_to(tmp_path / "here")
    assert list_photos(str(tmp_path / "here")) == (["a.jpg", "linked/b.jpg"], {})


def test_unreadable_photos_are_listed_and_fail_without_waiting(tmp_path: Path) -> None:
    make_files(tmp_path, "a.jpg")
    (tmp_path / "dangling.jpg").symlink_to(tmp_path / "gone.jpg")
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    (tmp_path / "endless.jpg").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.jpg")
    names, left_out = list_photos(str(tmp_path))
    assert names == ["a.jpg", "dangling.jpg", "endless.jpg", "loop.jpg", "pipe.jpg"]
    assert left_out == {}
    for path in (tmp_path / name for name in names[1:]):
        assert find_photos([path]) == ([path], {})
        with pytest.raises(OSError, match=f"{path.name}'$"):
            read_photo(path)
    assert read_photo(tmp_path / "a.jpg") == b""


def test_read_photo_takes_the_pipes_of_a_shell(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"photo")
    script = "from service.images.folders import read_photo; print(read_photo('/dev/stdin', 3))"
    shell = ["sh", "-c", 'cat a.jpg | "$0" -c "$1"', sys.executable, script]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert done.stdout == b"b'pho'\n"


def test_other_files_are_counted_by_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.images.formats.ENDINGS", (".jpg", ".jfif"))
    monkeypatch.setattr("service.images.formats.FORMATS", ("JPEG",))
    make_files(tmp_path, "a.JFIF", "b/c.HEIC", "b/d.tiff", "e", "at 2.5 km", ".f.jpg", "g\n.tIff")
    _, left_out = find_photos([tmp_path, tmp_path / "e"])
    assert left_out == {
        ".heic: needs the extra heif": 1, ".tiff": 2, "without ending": 2, "hidden": 1
    }  # fmt: skip


@pytest.mark.parametrize(
    ("left_out", "line"),
    [
        ({".md": 1}, "1 file left out (1 .md)"),
        (
            {f".{letter}": count for count, letter in enumerate("abcdefg", start=1)},
            "28 files left out (7 .g; 6 .f; 5 .e; 4 .d; 3 .c; 3 of other kinds)",
        ),
        ({"@eaDir/": 2, ".md": 1}, "1 file and 2 folders left out (2 @eaDir/; 1 .md)"),
        ({".git/": 1}, "1 folder left out (1 .git/)"),
    ],
)
def test_description_of_other_files_begins_with_the_most_frequent(
    left_out: dict[str, int], line: str
) -> None:
    assert describe_left_out(LeftOut(left_out)) == line


def test_folder_without_photos_is_refused_with_its_other_files(tmp_path: Path) -> None:
    make_files(tmp_path, "a.tiff")
    with pytest.raises(StartError, match=r"contains no photos: 1 file left out \(1 \.tiff\)"):
        find_photos([tmp_path])


def test_find_photos_lists_an_unreadable_folder_as_a_photo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # other users may not come here by the whole path
    make_files(Path(), "open/a.png", "open/shut/a.png")
    tmp_path.chmod(0o755)
    shut = Path("open/shut")
    shut.chmod(0)
    own = os.geteuid()
    os.seteuid(_NOBODY if own == 0 else own)  # without root's right to read everything
    try:
        assert find_photos([Path("open")])[0] == [Path("open/a.png"), shut]
        assert find_photos([shut])[0] == [shut]
        with pytest.raises(PermissionError):
            read_photo(shut)
    finally:
        os.seteuid(own)
    shut.chmod(0o755)
    assert find_photos([Path("open")])[0] == [Path("open/a.png"), shut / "a.png"]
