"""The user's tags of photos: never own ones, and those that programs show."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from PIL import Image

from service.archive import PhotoTags, Tag
from service.archive.sidecars import write_sidecars
from service.archive.tags import find_rejected, list_users
from service.archive.users import read_photo_tags
from service.archive.xmp import FIELDS, HIERARCHY, SUBJECT, TAGS_LIST, Field, Packet
from tests.service.archive.test_tags import LABELS, RUNS, TAGS, Run, Tags, begin, fold, write

Found = dict[Field, list[Tag]]
DARKTABLE: Found = {
    HIERARCHY: [("animals", "cat"), ("darktable", "format", "jpg")],
    SUBJECT: [("animals",), ("cat",), ("darktable",), ("format",), ("jpg",), ("sea",)],
}
DIGIKAM: Found = {TAGS_LIST: [("trips", "sea"), ("_Digikam_Internal_Tags_", "Pick Label None")]}


def render(tags: Found) -> bytes:
    packet = Packet()
    for field, found in tags.items():
        packet.replace(field, found)
    return packet.render()


def save(path: Path, **tags: Any) -> Path:
    Image.new("RGB", (8, 8)).save(path, **tags)
    return path


def tag(photo: Path, *labels: str) -> None:
    own = [(photo.name, labels)], ("found",), {}
    counts, _ = write_sidecars(photo.parent, *own, dry_run=False)
    assert counts["sidecars"]


@pytest.mark.parametrize(
    ("name", "tags", "users"),
    [
        ("a.jpg.xmp", DARKTABLE, [("animals", "cat"), ("sea",)]),
        ("a.XMP", DIGIKAM, [("trips", "sea")]),
        ("a.xmp", DARKTABLE | DIGIKAM, [("trips", "sea"), ("animals", "cat")]),
        ("a.xmp", {SUBJECT: [("animals|cat",), ("AC/DC",)]}, [("animals", "cat"), ("AC/DC",)]),
        (None, {}, []),
    ],
)
def test_tags_of_other_programs_are_read_with_and_without_own_ones(
    tmp_path: Path, name: str | None, tags: Found, users: list[Tag]
) -> None:
    photo = save(tmp_path / "a.jpg")
    if name is not None:
        (tmp_path / name).write_bytes(render(tags))
    assert read_photo_tags(photo) == PhotoTags(tuple(users))
    tag(photo, "dog", "one/two", "Sea")
    kept = ("dog", "one-two", *["Sea"] * all(levels[-1] != "sea" for levels in users))
    assert read_photo_tags(photo) == PhotoTags(tuple(users), (), kept)


def test_a_sidecar_of_jpeg_and_raw_has_the_tags_of_both(tmp_path: Path) -> None:
    photos = [save(tmp_path / "a.jpg"), tmp_path / "a.raf"]
    photos[1].touch()
    (tmp_path / "a.xmp").write_bytes(render(DIGIKAM))
    assert [read_photo_tags(photo).users for photo in photos] == [(("trips", "sea"),)] * 2
    (tmp_path / "a.raf.xmp").write_bytes(render(DARKTABLE))
    assert [len(read_photo_tags(photo).users) for photo in photos] == [1, 2]


def test_tags_in_the_photo_count_unless_the_sidecar_replaces_or_lacks_them(tmp_path: Path) -> None:
    photo = save(tmp_path / "a.jpg", xmp=render({HIERARCHY: [("a", "b")], SUBJECT: [("c",)]}))
    if shutil.which("exiftool"):
        words = ["-IPTC:Keywords=b", "-IPTC:Keywords=c", "-overwrite_original"]
        subprocess.run(["exiftool", "-q", *words, photo], check=True)
    users = (("a", "b"), ("c",))
    assert read_photo_tags(photo).users == users
    tag(photo, "dog")
    assert read_photo_tags(photo) == PhotoTags(users, (), ("dog",))
    sidecar = tmp_path / "a.jpg.xmp"
    packet = Packet(sidecar.read_bytes())
    packet.replace(TAGS_LIST, [("c",), ("found", "dog")])  # as immich deletes `a/b`
    sidecar.write_bytes(packet.render())
    assert read_photo_tags(photo) == PhotoTags((("c",),), (), ("dog",))
    sidecar.write_bytes(render({HIERARCHY: [("d",)], SUBJECT: [("d",)]}))
    assert read_photo_tags(photo).users == (("d",),)


@pytest.mark.parametrize("field", FIELDS)
def test_a_deleted_own_tag_is_rejected_until_the_user_adds_it(tmp_path: Path, field: Field) -> None:
    photo, sidecar = save(tmp_path / "a.jpg"), tmp_path / "a.jpg.xmp"
    tag(photo, "cat", "dog")
    packet = Packet(sidecar.read_bytes())
    packet.replace(field, [t for t in packet.read(field) or () if t[-1] != "cat"])
    sidecar.write_bytes(packet.render())
    assert read_photo_tags(photo) == PhotoTags((), ("cat",), ("dog",))
    tag(photo, "dog", "cat", "cow")
    assert read_photo_tags(photo) == PhotoTags((), ("cat",), ("dog", "cow"))
    packet = Packet(sidecar.read_bytes())
    packet.replace(TAGS_LIST, [*(packet.read(TAGS_LIST) or ()), ("pets", "Cat")])
    sidecar.write_bytes(packet.render())
    assert read_photo_tags(photo).users == (("pets", "Cat"),)
    for each in FIELDS:  # digiKam drops all fields; the memory is left
        packet.replace(each, None)
    sidecar.write_bytes(packet.render())
    assert read_photo_tags(photo) == PhotoTags((), ("cat", "dog", "cow"))


def test_a_damaged_sidecar_is_an_error_with_its_reason(tmp_path: Path) -> None:
    photo = save(tmp_path / "a.jpg")
    (tmp_path / "a.jpg.xmp").write_bytes(b"<svg/>")
    with pytest.raises(ValueError, match="it is not XMP: restore it"):
        read_photo_tags(photo)
    assert read_photo_tags(save(tmp_path / "b.jpg")) == PhotoTags()


@given(TAGS, TAGS, RUNS, LABELS)
def test_runs_do_not_change_the_users_tags(tags: Tags, photo: Tags, run: Run, more: Any) -> None:
    before = fold(list_users(begin(tags), photo, ()))
    once = write(begin(tags), photo, *run)
    for state in (once, write(once, photo, more, run[1])):
        assert not find_rejected(state, photo)
        assert fold(list_users(state, photo, ())) == before
