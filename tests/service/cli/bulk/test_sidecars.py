"""XMP sidecars: own tags come and go, everything else stays as it is."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import canonicalize

import pytest

from service.cli.bulk.parts import open_parts
from service.cli.bulk.sidecars import find_folder, write_sidecars
from service.errors import StartError
from tests.service.cli.bulk.test_parts import FLAGS, LABEL, QUESTION, record

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
def tag(folder: Path, tmp_path: Path) -> Tag:
    """Writes the sidecars of results that have these labels for one photo."""

    def tag_one(*labels: str, name: str = "a.jpg") -> dict[str, int]:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        rows = [LABEL | {"label": label, "score": 0.1, "found": True} for label in labels]
        rows.append(LABEL | {"label": "other", "found": False})
        with open_parts(str(tmp_path / "out"), FLAGS) as parts:
            parts.write([record("bad.jpg", "broken"), record(name) | {"labels": rows}])
        return dict(write_sidecars(str(tmp_path / "out"), folder))

    return tag_one


def read_tags(sidecar: Path) -> dict[str, list[str]]:
    """Returns a sidecar's tags, as exiftool reads them."""
    if shutil.which("exiftool") is None:
        pytest.skip("no exiftool")
    command = ["exiftool", "-j", "-struct", "-s", *(f"-XMP:{name}" for name in PREFIXES), sidecar]
    (found,) = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    tags = {name: found.get(name, []) for name in PREFIXES}
    return {name: [tag] if isinstance(tag, str) else tag for name, tag in tags.items()}


def stamp(sidecar: Path) -> tuple[int, int, int]:
    found = sidecar.lstat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def expect(*labels: str) -> dict[str, list[str]]:
    return {name: [prefix + label for label in labels] for name, prefix in PREFIXES.items()}


def test_found_labels_are_tags_until_a_later_run_lacks_them(tag: Tag, folder: Path) -> None:
    sidecar = folder / "a.jpg.xmp"
    assert tag() == {"sidecars": 0}
    assert not sidecar.exists()
    assert tag("cat", "cup & saucer", "one/two|three") == {"sidecars": 1}
    assert read_tags(sidecar) == expect("cat", "cup & saucer", "one-two-three")
    before = stamp(sidecar)
    assert tag("cup & saucer", "cat", "one/two|three") == {"sidecars": 0}
    assert stamp(sidecar) == before
    assert tag("cat", "dog") == {"sidecars": 1}
    assert read_tags(sidecar) == expect("cat", "dog")
    assert tag() == {"sidecars": 1}
    assert read_tags(sidecar) == expect()
    assert (folder / "a.jpg").read_bytes() == b"photo"
    (folder / "a.jpg").unlink()
    assert tag("cat") == {"sidecars": 0}


def test_fields_and_tags_of_other_programs_stay(tag: Tag, folder: Path) -> None:
    sidecar = folder / "a.jpg.xmp"
    sidecar.write_bytes(PLAIN)
    sidecar.chmod(0o640)
    assert tag("cat", "holiday") == {"sidecars": 0}
    assert tag("cat", "dog") == {"sidecars": 1}
    assert sidecar.stat().st_mode & 0o777 == 0o640
    assert read_tags(sidecar) == {
        "Subject": ["holiday", "cat", "dog"],
        "TagsList": ["ml-decoder/dog"],
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
    assert tag("cat") == {"sidecars": 0}


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (b"", "it is not XML"),
        (b"\xff\xd8\xff\xe0JFIF", "it is not XML"),
        (FOREIGN.encode("utf-16"), "it is not XML"),
        (b"<a>" * 100_000, "it is not XML"),
        # Its bytes are valid in UTF-8, with another meaning.
        (b'<?xml version="1.0" encoding="ISO-8859-1"?>\xc3\xa9', "its encoding is not UTF-8"),
        (b"<svg/>", "it is not XMP"),
        (b'<!DOCTYPE a [<!ENTITY e SYSTEM "/etc/passwd">]><a>&e;</a>', "it has a DOCTYPE"),
        (PLAIN.replace(b"elements/1.1/'", b"elements/1.1/' dc:subject='a'"), "its dc:subject is"),
        (PLAIN.replace(b"<dc:subject>", b"<dc:subject/><dc:subject>"), "its dc:subject is not one"),
        (b"<a>" + bytes(8_000_000), "it is larger than 8000000 bytes"),
        (lambda sidecar: sidecar.symlink_to("b.xmp"), "it is not a regular file"),
        (Path.mkdir, "it is not a regular file"),
        (os.mkfifo, "it is not a regular file"),
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
    assert f"a.jpg.xmp was not written: {reason}" in caplog.text
    assert stamp(sidecar) == before
    assert (folder / "b.xmp").read_bytes() == PLAIN


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
    sidecar, staging = folder / "a.jpg.xmp", folder / ".a.jpg.xmp.tmp"
    sidecar.write_bytes(PLAIN)

    def fail(file: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}") == str(staging):
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("service.cli.bulk.parts.os.fsync", fail)
        assert tag("dog") == {"unwritten": 1}
    assert sidecar.read_bytes() == PLAIN
    assert not staging.exists()
    (tmp_path / "elsewhere").touch()
    staging.symlink_to(tmp_path / "elsewhere")  # as of a killed run, and hostile
    assert tag("dog") == {"sidecars": 1}
    assert "ml-decoder|dog" in sidecar.read_text()
    assert {path.name for path in folder.iterdir()} == {"a.jpg", "a.jpg.xmp"}
    assert not (tmp_path / "elsewhere").stat().st_size


def test_sidecars_need_a_local_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("photos/a.jpg\n")
    for location in ("s3://bucket/photos", str(tmp_path / "list.txt"), str(tmp_path / "none")):
        with pytest.raises(StartError, match="--xmp needs a local folder of photos"):
            find_folder(location, from_results=False)
    with open_parts(str(tmp_path / "out"), QUESTION | {"photos": str(folder)}):
        assert find_folder(str(tmp_path / "out"), from_results=True) == folder
