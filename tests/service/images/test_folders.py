"""The photos of a folder are the same for every command."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.errors import StartError
from service.images.folders import LeftOut, describe_left_out, find_photos, list_photos

_NOBODY = 65534


def fail(error: OSError) -> None:
    raise error


def make_files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_photos_are_listed_by_name(tmp_path: Path) -> None:
    make_files(tmp_path, "b/2.JPG", "a.png", "b/1.webp", "notes.txt", "b/1.webp.map-1-cat.jpg")
    (tmp_path / "folder.jpg").mkdir()

    assert list_photos(str(tmp_path), fail) == (["a.png", "b/1.webp", "b/2.JPG"], {".txt": 1})


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    make_files(tmp_path, "._a.jpg", ".thumbnails/a.jpg", "a.jpg")

    assert list_photos(str(tmp_path), fail) == (["a.jpg"], {"hidden": 1})
    assert find_photos([tmp_path]) == ([tmp_path / "a.jpg"], {"hidden": 1})


def test_linked_folder_is_searched_once(tmp_path: Path) -> None:
    make_files(tmp_path, "here/a.jpg", "elsewhere/b.jpg")
    (tmp_path / "here" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "here" / "back").symlink_to(tmp_path / "here")

    assert list_photos(str(tmp_path / "here"), fail) == (["a.jpg", "linked/b.jpg"], {})


def test_unreadable_folder_is_reported(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(FileNotFoundError):
        list_photos(str(missing), fail)

    reported: list[OSError] = []
    assert list_photos(str(missing), reported.append) == ([], {})
    assert [error.filename for error in reported] == [str(missing)]


def test_other_files_are_counted_by_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.images.formats.ENDINGS", (".jpg", ".jfif"))
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
        with pytest.raises(PermissionError):
            shut.read_bytes()
    shut.chmod(0o755)
    assert find_photos([Path("open")])[0] == [Path("open/a.png"), shut / "a.png"]
