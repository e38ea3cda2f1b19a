"""Photos of folders and lists."""

import os
from pathlib import Path

import pytest
from pyarrow import fs

from service.cli.bulk.photo_store import PhotoStore, open_photos
from service.errors import StartError
from tests.support.photos import encode_picture, make_photo, make_picture
from tests.support.raw_files import make_dng

ODD = os.fsdecode(b"caf\xe9.jpg")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.PNG", "a.jpg", "sub/deep/c.webp", ".hidden.jpg", ".cache/d.jpg", "notes.md"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make_photo())
    return tmp_path / "photos"


def test_open_photos_sorts_a_folder_and_logs_its_other_files(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, names, left_out = open_photos(str(folder))
    assert names == ["a.jpg", "b.PNG", "sub/deep/c.webp"]
    assert left_out == 3
    assert f"{folder}: 2 files and 1 folder left out (1 .cache/; " in caplog.text
    assert store.read(names[2], 10_000_000) == make_photo()
    assert open_photos(folder.as_uri())[1:] == (names, left_out)


def test_open_photos_reads_a_list_relative_to_its_folder(folder: Path) -> None:
    listed = folder.parent / "list.txt"
    absolute = str(folder / "a.jpg")
    lines = ["\ufeffphotos/b.PNG", "", absolute, "photos/b.PNG", "photos/gone.jpg"]
    odd = ["photos/a\u2028b.jpg", f"photos/{ODD}"]  # a separator of lines, and no UTF-8
    listed.write_bytes("\r\n".join(lines + odd).encode(errors="surrogateescape"))
    store, names, left_out = open_photos(str(listed))
    assert (names, left_out) == (["photos/b.PNG", absolute, "photos/gone.jpg", *odd], 0)
    assert [len(store.read(name, 5)) for name in names[:2]] == [6, 6]
    with pytest.raises(FileNotFoundError):
        store.read("photos/gone.jpg", 5)
    with pytest.raises(StartError, match=r"--exclude-path needs a folder .*list\.txt is a list"):
        open_photos(str(listed), ["deep"])


def test_open_photos_finds_a_photo_of_an_object_store_by_its_content(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "e").write_bytes(make_photo())
    (folder / "f").write_text("no photo")
    store = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
    monkeypatch.setattr("service.cli.bulk.photo_store.open_filesystem", lambda _: (store, ""))
    assert open_photos("store")[1:] == (["a.jpg", "b.PNG", "e", "sub/deep/c.webp"], 4)
    assert open_photos("store", ["deep", "*.PNG"])[1:] == (["a.jpg", "e"], 6)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("{tmp}/none", "no such folder or list"),
        ("{tmp}/empty", "has no photos"),
        ("nosuch://bucket/photos", "file system not available"),
        (f"{{tmp}}/{ODD}", "the path is not UTF-8: rename the folder"),
        ("{tmp}/png", "neither a folder nor a list"),
        ("{tmp}/tiff", "neither a folder nor a list"),
    ],
)
def test_open_photos_refuses_a_place_without_photos(
    tmp_path: Path, place: str, reason: str
) -> None:
    for name in ("empty", ODD):
        (tmp_path / name).mkdir()
    (tmp_path / "png").write_bytes(b"\x89PNG\xff\xfe")
    (tmp_path / "tiff").write_bytes(b"II*\0\x08\0\0\0")
    with pytest.raises(StartError, match=reason):
        open_photos(place.format(tmp=tmp_path))


def test_raw_file_of_an_object_store_is_read_whole_for_its_preview(folder: Path) -> None:
    pytest.importorskip("rawpy", reason="needs the extra raw")
    preview = encode_picture(make_picture(1, 1000, 10), "JPEG")
    (folder / "d.CR2").write_bytes(make_dng(preview, (1000, 10), 1, 7))
    for filesystem in (fs.LocalFileSystem(), fs.SubTreeFileSystem("/", fs.LocalFileSystem())):
        store = PhotoStore(filesystem, str(folder))
        assert store.read("d.CR2", 2000).endswith(preview[2:])
        assert len(store.read("b.PNG", 5)) == 6
