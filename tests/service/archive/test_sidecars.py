"""XMP sidecars: own tags come and go, everything else stays as it is."""

import json
import os
import shutil
import subprocess
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import canonicalize

import pytest
from PIL import Image

from service.archive.sidecars import list_sidecars, write_sidecars
from tests.service.archive.test_tags import ENGLISH, GERMAN

FOREIGN = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:dt="http://darktable.sf.net/" dt:xmp_version="5">
   <!-- by hand --><dt:history><rdf:Seq><rdf:li dt:num="0" dt:params="gz09"/></rdf:Seq></dt:history>
  </rdf:Description>
  <rdf:Description rdf:about="" xmlns:dc='http://purl.org/dc/elements/1.1/'
    xmlns:lr="http://ns.adobe.com/lightroom/1.0/">
   <dc:subject><rdf:Bag><rdf:li>holiday</rdf:li><rdf:li>cat</rdf:li></rdf:Bag></dc:subject>
   <lr:hierarchicalSubject><rdf:Bag>%s<rdf:li>trips|holiday</rdf:li></rdf:Bag></lr:hierarchicalSubject>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""
PLAIN = (FOREIGN % "").encode()
PREFIXES = {"Subject": "", "TagsList": "ml-decoder/", "HierarchicalSubject": "ml-decoder|"}
Tag = Callable[..., dict[str, int]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").write_bytes(b"photo")
    return tmp_path / "photos"


@pytest.fixture
def tag(folder: Path) -> Tag:
    """Writes the sidecar of a photo with these labels; returns the counts that are not 0."""

    def tag_one(
        *labels: str, name: str = "a.jpg", root: Any = ("ml-decoder",), words: Any = ()
    ) -> dict[str, int]:
        own = [(name, labels)], root, dict(words)
        counts, changes = write_sidecars(folder, *own, dry_run=False)
        assert len(changes) == counts["sidecars"]
        return dict(+counts)

    return tag_one


def read_tags(sidecar: Path) -> dict[str, list[str]]:
    """Returns a sidecar's tags, as exiftool reads them."""
    if shutil.which("exiftool") is None:
        pytest.skip("no exiftool")
    command = ["exiftool", "-j", "-struct", "-s", *(f"-XMP:{name}" for name in PREFIXES)]
    (found,) = json.loads(
        subprocess.run([*command, str(sidecar)], capture_output=True, check=True).stdout
    )
    tags = {name: found.get(name, []) for name in PREFIXES}
    return {name: [tag] if isinstance(tag, str) else tag for name, tag in tags.items()}


def stamp(sidecar: Path) -> tuple[int, int, int]:
    found = sidecar.lstat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def expect(*labels: str) -> dict[str, list[str]]:
    return {name: [prefix + label for label in labels] for name, prefix in PREFIXES.items()}


def test_found_labels_are_tags_until_a_later_run_lacks_them(tag: Tag, folder: Path) -> None:
    sidecar = folder / "a.jpg.xmp"
    assert tag() == {}
    assert not sidecar.exists()
    assert tag("cat", "cup & saucer", "one/two|three") == {"sidecars": 1}
    assert read_tags(sidecar) == expect("cat", "cup & saucer", "one-two-three")
    before = stamp(sidecar)
    assert tag("cup & saucer", "cat", "one/two|three") == {}
    assert stamp(sidecar) == before
    assert tag("cat", "dog") == {"sidecars": 1}
    assert read_tags(sidecar) == expect("cat", "dog")
    assert tag() == {"sidecars": 1}
    assert not sidecar.exists()
    assert (folder / "a.jpg").read_bytes() == b"photo"
    (folder / "a.jpg").unlink()
    assert tag("cat") == {}


def test_tags_move_with_root_language_and_parents_and_leave_nothing_behind(
    tag: Tag, folder: Path
) -> None:
    sidecar = folder / "a.jpg.xmp"
    sidecar.write_bytes(PLAIN.replace(b">cat<", b">trips<"))  # as parents are named
    before = read_tags(sidecar)
    english, german = ("trips", "holiday", "cat"), ("Reise", "dog", "Katze")
    for root in (("ml-decoder",), ()):
        for words, path in (
            ({}, ("cat",)),
            (ENGLISH, english),
            (GERMAN, german),
            (ENGLISH, english),
        ):
            assert tag("cat", root=root, words=words) == {"sidecars": 1}
            assert read_tags(sidecar) == {
                "Subject": ["holiday", "trips", path[-1]],
                "TagsList": ["trips/holiday", "/".join([*root, *path])],
                "HierarchicalSubject": ["trips|holiday", "|".join([*root, *path])],
            }
    # As in version 1.1.
    memory = sidecar.read_text().partition("mld:written")[2]
    assert "<rdf:li>trips/holiday/cat</rdf:li>" in memory
    assert tag() == {"sidecars": 1}
    assert read_tags(sidecar) == before
    assert tag("cat", "cow", root=(), words=GERMAN) == {"sidecars": 1}
    sidecar.write_text(sidecar.read_text().replace("<rdf:li>Katze</rdf:li>", "", 1))
    assert tag("cat", "cow", root=(), words=ENGLISH) == {"sidecars": 1, "rejected": 1}
    assert read_tags(sidecar)["TagsList"] == ["trips/holiday", "cow"]


def test_fields_and_tags_of_other_programs_stay(tag: Tag, folder: Path) -> None:
    sidecar = folder / "a.jpg.xmp"
    sidecar.write_bytes(PLAIN)
    sidecar.chmod(0o640)
    assert tag("cat", "holiday") == {}
    assert tag("cat", "dog") == {"sidecars": 1}
    assert sidecar.stat().st_mode & 0o777 == 0o640
    assert read_tags(sidecar) == {
        "Subject": ["holiday", "cat", "dog"],
        "TagsList": ["trips/holiday", "cat", "ml-decoder/dog"],
        "HierarchicalSubject": ["trips|holiday", "ml-decoder|dog"],
    }
    assert tag("trips") == {"sidecars": 1}
    contents = (sidecar.read_bytes(), PLAIN)
    assert len({canonicalize(x, strip_text=True, with_comments=True) for x in contents}) == 1
    # The label is below `animals` since it was written, so it is no longer the command's own.
    sidecar.write_text(FOREIGN % "<rdf:li>ml-decoder|cat</rdf:li><rdf:li>animals|cat</rdf:li>")
    assert tag("cat") == {"sidecars": 1}
    trees = {"HierarchicalSubject": ["animals|cat", "trips|holiday"]}
    assert read_tags(sidecar) == {"Subject": ["holiday", "cat"], "TagsList": [], **trees}
    assert tag("cat") == {}


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (b"\xff\xd8\xff\xe0JFIF", "it is not XML"),
        (FOREIGN.encode("utf-16"), "its encoding is UTF-16: convert it (iconv -f UTF-16 -t UTF-8)"),
        (FOREIGN.encode("utf-16-le"), "its encoding is UTF-16"),
        (
            PLAIN + bytes(99),
            f"it ends in zeros, as after a crash: it is damaged; restore it, or keep {len(PLAIN)}",
        ),
        (bytes(4096), "it ends in zeros, as after a crash: delete it"),
        (b"<a>" * 100_000, "it is not XML"),
        # Its bytes are valid in UTF-8, with another meaning.
        (b'<?xml version="1.0" encoding="ISO-8859-1"?>\xc3\xa9', "its encoding is not UTF-8"),
        (b"<svg/>", "it is not XMP"),
        (b'<!DOCTYPE a [<!ENTITY e SYSTEM "/etc/passwd">]><a>&e;</a>', "it has a DOCTYPE"),
        (PLAIN.replace(b"elements/1.1/'", b"elements/1.1/' dc:subject='a'"), "its dc:subject is"),
        (PLAIN.replace(b"<dc:subject>", b"<dc:subject/><dc:subject>"), "its dc:subject is not one"),
        (
            PLAIN.replace(b"t><rdf:Bag>", b"t>a<rdf:Bag>", 1),
            "its dc:subject is not one list: open it",
        ),
        (b"<a>" + bytes(8_000_000), "it is larger than 8000000 bytes"),
        (lambda sidecar: sidecar.symlink_to("b.xmp"), "it is a link, a folder or a pipe: put"),
        (Path.mkdir, "it is a link, a folder or a pipe: put"),
        (os.mkfifo, "it is a link, a folder or a pipe: put"),
    ],
)
def test_sidecar_of_another_form_is_left_as_it_is(
    tag: Tag, folder: Path, caplog: pytest.LogCaptureFixture, made: Any, reason: str
) -> None:
    sidecar = folder / "a.jpg.xmp"
    (folder / "b.xmp").write_bytes(PLAIN)
    sidecar.write_bytes(made) if isinstance(made, bytes) else made(sidecar)
    before = stamp(sidecar)
    assert tag("cat") == {"unwritten": 1}
    assert f"a.jpg: its sidecar was not written: {reason}" in caplog.text
    assert stamp(sidecar) == before
    assert (folder / "b.xmp").read_bytes() == PLAIN
    (folder / "c.jpg").touch()
    assert tag("cat", name="c.jpg") == {"sidecars": 1}


@pytest.mark.parametrize("name", ["link.jpg", "linked/a.jpg", "../a.jpg", "/etc/hostname"])
def test_nothing_is_written_outside_of_the_folder(
    tag: Tag, folder: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.jpg").touch()
    (folder / "linked").symlink_to(tmp_path)
    (folder / "link.jpg").symlink_to(tmp_path / "a.jpg")
    assert tag("cat", name=name) == {"unwritten": 1}
    assert "the photo is a link, or in a linked folder" in caplog.text
    assert not list(tmp_path.rglob("*.xmp"))


def test_interrupted_write_leaves_the_old_sidecar(
    tag: Tag, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar, staging = folder / "a.jpg.xmp", folder / ".ml-decoder.xmp.tmp"
    sidecar.write_bytes(PLAIN)

    def fail(file: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}") == str(staging):
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("service.files.os.fsync", fail)
        assert tag("dog") == {"unwritten": 1}
    assert sidecar.read_bytes() == PLAIN
    assert not staging.exists()
    (tmp_path / "elsewhere").touch()
    staging.symlink_to(tmp_path / "elsewhere")  # as of a killed run, and hostile
    assert tag("dog") == {"sidecars": 1}
    assert "ml-decoder|dog" in sidecar.read_text()
    assert {path.name for path in folder.iterdir()} == {"a.jpg", "a.jpg.xmp"}
    assert not (tmp_path / "elsewhere").stat().st_size


@pytest.mark.parametrize(
    ("others", "sidecar"),
    [
        ((), "a.jpg.xmp"),
        (("a.jpg.XMP",), "a.jpg.XMP"),
        (("a.jpg.XMP", "a.jpg.xmp"), "a.jpg.xmp"),
        (("a.xmp",), "a.xmp"),
        (("a.XMP", "a.txt", "b.jpg", "b.CR2"), "a.XMP"),
        (("a.xmp", "a.jpg.xmp", "a.CR2"), "a.jpg.xmp"),
        (("a.xmp", "a.CR2"), None),
        (("a.xmp", "A.png"), None),
        (("a.xmp", "a.tif"), None),
    ],
)
def test_the_sidecar_that_is_there_is_extended_if_it_is_of_this_photo_alone(
    tag: Tag, folder: Path, others: tuple[str, ...], sidecar: str | None, caplog: Any
) -> None:
    for name in others:
        (folder / name).write_bytes(PLAIN if name.lower().endswith("xmp") else b"")
    untouched = {name: stamp(folder / name) for name in others if name != sidecar}
    assert tag("dog") == ({"left_alone": 1} if sidecar is None else {"sidecars": 1})
    assert {path.name for path in folder.iterdir()} == {"a.jpg", *others, sidecar or "a.jpg"}
    assert {name: stamp(folder / name) for name in untouched} == untouched
    if sidecar is not None:
        assert "dog" in read_tags(folder / sidecar)["Subject"]
        assert next(list_sidecars(folder)) == (folder / sidecar, folder / "a.jpg")
    else:
        assert "a.jpg: no sidecar was written: it would hide a.xmp, which is of" in caplog.text
        (folder / "c.jpg").touch()
        assert tag("dog", name="c.jpg") == {"sidecars": 1}


def test_sidecar_of_a_raw_file_is_beside_it_unless_another_is_there(tag: Tag, folder: Path) -> None:
    for name in ("m.CR2", "n.CR2"):
        (folder / name).touch()
    (folder / "m.xmp").write_bytes(PLAIN)
    assert tag("dog", name="m.CR2") == {"left_alone": 1}
    assert (folder / "m.xmp").read_bytes() == PLAIN
    assert tag("dog", name="n.CR2") == {"sidecars": 1}
    assert read_tags(folder / "n.CR2.xmp") == expect("dog")


def test_write_keeps_the_file_and_read_only_files_are_left_alone(
    tag: Tag, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sidecar = folder / "a.jpg.xmp"
    sidecar.write_bytes(b"")
    sidecar.chmod(0o640)
    os.setxattr(sidecar, "user.note", b"mine")
    os.utime(sidecar, (0, 0))
    assert tag("cat") == {"sidecars": 1}
    assert (sidecar.stat().st_mode & 0o777, os.getxattr(sidecar, "user.note")) == (0o640, b"mine")
    assert sidecar.stat().st_mtime > 0
    sidecar.chmod(0o444)
    before = stamp(sidecar)
    assert tag("dog") == {"left_alone": 1}
    assert "a.jpg.xmp is read-only" in caplog.text
    assert (stamp(sidecar), tag("cat")) == (before, {})
    long = folder / f"{'é' * 123}a.jpg"  # 251 bytes
    long.touch()
    assert tag("cat", name=long.name) == {"sidecars": 1}
    assert read_tags(Path(f"{long}.xmp")) == expect("cat")


def test_tags_of_earlier_versions_are_own_and_no_longer_hide_others(tag: Tag, folder: Path) -> None:
    sidecar = folder / "a.jpg.xmp"
    tags = "<digiKam:TagsList><rdf:Seq><rdf:li>ml-decoder/dog</rdf:li></rdf:Seq></digiKam:TagsList>"
    space = "xmlns:digiKam='http://www.digikam.org/ns/1.0/'"
    old = (FOREIGN % "<rdf:li>ml-decoder|dog</rdf:li>").replace(">cat<", ">dog<")
    sidecar.write_text(
        old.replace("<dc:sub", f"{tags}<dc:sub", 1).replace("xmlns:lr", f"{space} xmlns:lr")
    )
    assert tag("cat") == {"sidecars": 1}
    assert read_tags(sidecar) == {
        "Subject": ["holiday", "cat"],
        "TagsList": ["trips/holiday", "ml-decoder/cat"],
        "HierarchicalSubject": ["trips|holiday", "ml-decoder|cat"],
    }


def test_time_does_not_grow_with_the_square_of_the_tags(tag: Tag, folder: Path) -> None:
    items = "".join(f"<rdf:li>{number}</rdf:li>" for number in range(20_000))
    sidecar = folder / "a.jpg.xmp"
    sidecar.write_text(FOREIGN % items)
    started = time.process_time()
    assert tag("dog") == tag("cat") == {"sidecars": 1}
    assert time.process_time() - started < 6  # 1.5 s; with a search of a list for each tag, 20


def test_names_of_any_case_and_form_are_one(tag: Tag, folder: Path) -> None:
    sidecar = folder / "a.jpg.xmp"
    decomposed = unicodedata.normalize("NFD", "CAFÉ")
    sidecar.write_text((FOREIGN % "").replace(">cat<", f">{decomposed}<"))
    assert tag("café", "HOLIDAY") == {}
    assert tag("café", "dog") == {"sidecars": 1}
    assert read_tags(sidecar)["TagsList"] == ["trips/holiday", decomposed, "ml-decoder/dog"]


def test_tags_in_the_photo_are_the_users(tag: Tag, folder: Path) -> None:
    if shutil.which("exiftool") is None:
        pytest.skip("no exiftool")
    Image.new("RGB", (8, 8)).save(folder / "a.jpg")
    given = (
        "-IPTC:Keywords=Cat",
        "-IPTC:Keywords=café",
        "-XMP-lr:HierarchicalSubject=trips|holiday",
    )
    subprocess.run(["exiftool", "-q", "-overwrite_original", *given, folder / "a.jpg"], check=True)
    assert tag("cat", "dog") == {"sidecars": 1}
    assert read_tags(folder / "a.jpg.xmp") == {
        "Subject": ["Cat", "café", "holiday", "dog"],
        "TagsList": ["trips/holiday", "Cat", "café", "ml-decoder/dog"],
        "HierarchicalSubject": ["trips|holiday", "Cat", "café", "ml-decoder|dog"],
    }
    # The sidecar follows what changes in the photo, and is deleted if nothing else is in it.
    change = ("-IPTC:Keywords-=café", "-XMP-lr:HierarchicalSubject+=trips|sea")
    subprocess.run(["exiftool", "-q", "-overwrite_original", *change, folder / "a.jpg"], check=True)
    assert tag("dog") == {"sidecars": 1}
    assert "café" not in str(read_tags(folder / "a.jpg.xmp"))
    assert "trips/sea" in read_tags(folder / "a.jpg.xmp")["TagsList"]
    assert tag() == {"sidecars": 1}
    assert not (folder / "a.jpg.xmp").exists()
    Image.new("RGB", (8, 8)).save(folder / "b.jpg", xmp=b"<x dc:subject")
    assert tag("cat", name="b.jpg") == {"unwritten": 1}
    assert tag("cow") == {"sidecars": 1}
