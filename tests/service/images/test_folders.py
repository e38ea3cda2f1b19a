"""The photos of a folder are the same for every command."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
from tests.e2e.server_process import ROOT
from tests.support.photos import make_photo

_NOBODY = 65534


def make_files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_photos_are_listed_by_name(tmp_path: Path) -> None:
    make_files(tmp_path, "b/2.JPG", "a.png", "b/1.webp", "notes.txt", "b/1.webp.map-1-cat.jpg")
    (tmp_path / "folder.jpg").mkdir()  # only a folder

    assert list_photos(str(tmp_path)) == (["a.png", "b/1.webp", "b/2.JPG"], {".txt": 1})


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    make_files(tmp_path, "._a.jpg", ".git/a.jpg", ".git/b.jpg", ".git/c/d.jpg", "a.jpg")

    assert list_photos(str(tmp_path)) == (["a.jpg"], {"hidden": 1, ".git/": 1})
    assert find_photos([tmp_path]) == ([tmp_path / "a.jpg"], {"hidden": 1, ".git/": 1})


@pytest.mark.parametrize("folder", ["@eaDir", ".thumbnails", "__MACOSX", "@__thumb", ".@__thumb"])
def test_folders_of_thumbnails_are_left_out_and_counted(tmp_path: Path, folder: str) -> None:
    make_files(tmp_path, f"{folder}/a.jpg/b.jpg", f"sea/{folder}/._c.jpg", "sea/c.jpg")

    assert list_photos(str(tmp_path)) == (["sea/c.jpg"], {f"{folder}/": 2})
    # The folder itself may be asked for.
    assert list_photos(str(tmp_path / folder)) == (["a.jpg/b.jpg"], {})


def test_object_store_and_folder_are_sorted_alike(tmp_path: Path) -> None:
    names = [
        "a.jpg",
        "@eaDir/a.jpg",
        "@eaDir/b.jpg",
        "sea/.x/y.jpg",
        "sea/b.txt",
        "sea/c_small.jpg",
    ]
    make_files(tmp_path, *names)
    expected = (["a.jpg"], {"@eaDir/": 1, ".x/": 1, ".txt": 1, "excluded": 1})

    assert list_photos(str(tmp_path), ["*_small.*"]) == expected
    assert split_photos(names, lambda _: b"", ["*_small.*"]) == expected


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


@pytest.mark.parametrize("name", ["a.mpo", "a.INSP", "a.apng", "a.jfif", "a.jpe"])
def test_ending_of_a_camera_is_one_of_photos(tmp_path: Path, name: str) -> None:
    make_files(tmp_path, name)
    assert list_photos(str(tmp_path)) == ([name], {})


@pytest.mark.skipif("HEIF" not in FORMATS, reason="pillow-heif is not installed")
def test_ending_hif_is_one_of_photos_with_the_extra(tmp_path: Path) -> None:
    make_files(tmp_path, "a.HIF")
    assert list_photos(str(tmp_path)) == (["a.HIF"], {})


@pytest.mark.parametrize("name", ["IMG_1.HEIC", "IMG_1.hif", "IMG_1", "IMG 2.5 km"])
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "GIF"])
def test_content_decides_if_the_ending_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file_format: str
) -> None:
    monkeypatch.setattr("service.images.formats.ENDINGS", (".jpg",))
    monkeypatch.setattr("service.images.formats.FORMATS", ("JPEG", "PNG", "WEBP", "GIF"))
    (tmp_path / name).write_bytes(make_photo(0, file_format))
    (tmp_path / "b.heic").write_bytes(b"\0\0\0\x1cftypheic" + bytes(99))
    (tmp_path / "c.heif").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "README").write_text("BMP and GIF")
    left_out = {
        ".heic: needs the extra heif": 1, ".heif: needs the extra heif": 1, "without ending": 2
    }  # fmt: skip
    assert list_photos(str(tmp_path)) == ([name], left_out)


def test_linked_folder_is_searched_once(tmp_path: Path) -> None:
    make_files(tmp_path, "here/a.jpg", "elsewhere/b.jpg")
    (tmp_path / "here" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "here" / "back").symlink_to(tmp_path / "here")

    assert list_photos(str(tmp_path / "here")) == (["a.jpg", "linked/b.jpg"], {})


def test_list_photos_refuses_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list_photos(str(tmp_path / "missing"))


@pytest.fixture
def unreadable(tmp_path: Path) -> Path:
    """A folder with one photo, and files that are named like photos and cannot be read."""
    make_files(tmp_path, "a.jpg")
    (tmp_path / "dangling.jpg").symlink_to(tmp_path / "gone.jpg")
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    (tmp_path / "endless.jpg").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.jpg")
    return tmp_path


def test_unreadable_photos_are_listed_and_fail_without_waiting(unreadable: Path) -> None:
    names, left_out = list_photos(str(unreadable))
    assert names == ["a.jpg", "dangling.jpg", "endless.jpg", "loop.jpg", "pipe.jpg"]
    assert left_out == {}
    for name in names[1:]:
        with pytest.raises(OSError, match=f"{name}'$"):
            read_photo(unreadable / name)
    assert read_photo(unreadable / "a.jpg") == b""


def test_read_photo_takes_the_pipes_of_a_shell(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"photo")
    script = "from service.images.folders import read_photo; print(read_photo('/dev/stdin', 3))"
    shell = ["sh", "-c", 'cat a.jpg | "$0" -c "$1"', sys.executable, script]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
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


def test_description_of_other_files_begins_with_the_most_frequent() -> None:
    assert describe_left_out(LeftOut({".md": 1})) == "1 file left out (1 .md)"
    many = LeftOut({f".{letter}": count for count, letter in enumerate("abcdefg", start=1)})
    assert describe_left_out(many) == (
        "28 files left out (7 .g; 6 .f; 5 .e; 4 .d; 3 .c; 3 of other kinds)"
    )
    folders = LeftOut({"@eaDir/": 2, ".md": 1})
    assert describe_left_out(folders) == "1 file and 2 folders left out (2 @eaDir/; 1 .md)"
    assert describe_left_out(LeftOut({".git/": 1})) == "1 folder left out (1 .git/)"


def test_folder_without_photos_is_refused_with_its_other_files(tmp_path: Path) -> None:
    make_files(tmp_path, "notes/a.tiff", "photos/a.jpg")
    with pytest.raises(StartError, match=r"contains no photos: 1 file left out \(1 \.tiff\)"):
        find_photos([tmp_path / "notes"])
    assert find_photos([tmp_path / "photos"])[0] == [tmp_path / "photos/a.jpg"]


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read everything."""
    own = os.geteuid()
    os.seteuid(_NOBODY if own == 0 else own)
    try:
        yield
    finally:
        os.seteuid(own)


def test_find_photos_lists_an_unreadable_folder_as_a_photo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # nobody may not come here by the whole path
    for folder in (Path("open"), Path("open/shut")):
        folder.mkdir()
        (folder / "a.png").write_bytes(b"photo")
    tmp_path.chmod(0o755)
    shut = Path("open/shut")
    shut.chmod(0)
    with as_nobody():
        assert find_photos([Path("open")])[0] == [Path("open/a.png"), shut]
        assert find_photos([shut])[0] == [shut]
        with pytest.raises(PermissionError):
            read_photo(shut)
    shut.chmod(0o755)
    assert find_photos([Path("open")])[0] == [Path("open/a.png"), shut / "a.png"]
