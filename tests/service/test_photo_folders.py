"""The photos of a folder are the same for every command."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.photo_folders import find_photos, list_photos


def fail(error: OSError) -> None:
    raise error


def make_files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_photos_below_are_listed_by_name_and_nothing_else(tmp_path: Path) -> None:
    make_files(tmp_path, "b/2.JPG", "a.png", "b/1.webp", "notes.txt", "b/1.webp.map-1-cat.jpg")
    (tmp_path / "folder.jpg").mkdir()

    assert list_photos(str(tmp_path), fail) == ["a.png", "b/1.webp", "b/2.JPG"]


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    make_files(tmp_path, "._a.jpg", ".thumbnails/a.jpg", "a.jpg")

    assert list_photos(str(tmp_path), fail) == ["a.jpg"]
    assert find_photos([tmp_path]) == [tmp_path / "a.jpg"]


def test_linked_folder_is_searched_and_one_that_leads_back_counts_once(tmp_path: Path) -> None:
    make_files(tmp_path, "here/a.jpg", "elsewhere/b.jpg")
    (tmp_path / "here" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "here" / "back").symlink_to(tmp_path / "here")

    assert list_photos(str(tmp_path / "here"), fail) == ["a.jpg", "linked/b.jpg"]


def test_folder_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(FileNotFoundError):
        list_photos(str(missing), fail)

    told: list[OSError] = []
    assert list_photos(str(missing), told.append) == []
    assert [error.filename for error in told] == [str(missing)]
