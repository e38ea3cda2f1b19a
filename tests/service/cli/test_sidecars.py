"""`ml-decoder bulk --xmp` and `ml-decoder sidecars` as an owner of photos uses them."""

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from service.bundle.reader import Bundle
from tests.service.archive.test_sidecars import PLAIN, read_tags
from tests.service.cli.conftest import Run, assert_refused
from tests.support.photos import write_photos


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_photos(tmp_path / "photos", 2)
    return tmp_path / "photos"


@pytest.fixture
def tag(run: Run, photos: Path, tmp_path: Path, monkeypatch: Any, tiny_bundle: Bundle) -> Run:
    """Tags the photos with cat and dog, into the results that are named."""
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(tiny_bundle.path))
    question = ("--threshold", "0", "--include", "cat", "--include", "dog", "--xmp")
    return lambda out, *flags: run("bulk", photos, tmp_path / out, *question, *flags)


def read_trees(sidecar: Path) -> list[str]:
    return read_tags(sidecar)["TagsList"]


def test_tags_of_earlier_results_move_below_parents_in_a_language(
    run_open: Run, photos: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    labels, sidecar = tmp_path / "labels.csv", photos / "00.png.xmp"
    bulk = partial(run_open, "bulk", photos, tmp_path / "a", "--xmp")

    def add(content: str) -> None:
        labels.write_text(content)
        assert run_open("labels", "add", "home", "--replace", "--file", labels)[0] == 0

    add("name\ncat\nanimal\n")
    assert bulk("--label-set", "home", "--threshold", "0")[0] == 0
    assert {*read_trees(sidecar)} == {"ml-decoder/cat", "ml-decoder/animal"}
    (tmp_path / "a/_words.json").unlink()  # version 1.1 has none
    add("name,parent,translation:de\ncat,mammal;animal,Katze\nanimal,,Tier\n")
    told = "0 tagged, 0 failed, 2 done before, 2 sidecars"
    for lang, trees in (
        ("xx", {"ml-decoder/animal/mammal/cat", "ml-decoder/animal"}),
        ("de-AT", {"ml-decoder/Tier/mammal/Katze", "ml-decoder/Tier"}),
    ):
        monkeypatch.setenv("ML_DECODER_LANG", lang)
        assert bulk("--add-new", "--dry-run")[1].endswith(f"{told} to write\n")
        assert bulk("--add-new") == (0, f"{told} written\n", "")
        assert {*read_trees(sidecar)} == trees
    # An earlier translation of a label is still its name, which the user deleted.
    delete = ["exiftool", "-q", "-overwrite_original", "-XMP-dc:Subject-=Katze", sidecar]
    subprocess.run(delete, check=True)
    add("name,parent,translation:de\ncat,pet,Mieze\nanimal,,\n")
    assert "1 deleted tags not written again" in bulk("--add-new")[1]
    trees = read_trees(photos / "01.png.xmp")
    assert {*trees} == {"ml-decoder/pet/Mieze", "ml-decoder/animal"}
    names = ", ".join(tag.rpartition("/")[2] for tag in trees)
    lines = f"{sidecar}: animal; deleted: Katze\n{photos}/01.png.xmp: {names}\n"
    total = "2 sidecars with 3 tags, 1 deleted by you\n"
    assert run_open("sidecars", photos) == (0, lines + total, "")
    # The label is deleted, so also without its earlier words; its name forgets the deletion.
    (tmp_path / "a/_words.json").unlink()
    assert "1 deleted tags not written again" in bulk("--add-new")[1]
    assert run_open("sidecars", photos, "cat", "--remove")[1].startswith("1 tags removed")
    assert run_open("sidecars", photos)[1].endswith("2 sidecars with 2 tags, 0 deleted by you\n")
    assert bulk("--add-new")[0] == 0
    assert {*read_trees(sidecar)} == {*trees}


def test_dry_run_writes_nothing_and_shows_changes(tag: Run, photos: Path, tmp_path: Path) -> None:
    code, out, err = tag("a", "--dry-run")
    lines = out.splitlines()
    assert (code, err, len(lines), lines[0]) == (0, "", 4, "dry run: nothing is written")
    assert sorted(lines[1].split()) == sorted([f"{photos}/00.png.xmp:", "+cat", "+dog"])
    assert lines[-1] == "2 tagged, 0 failed, 0 done before, 2 sidecars to write"
    assert not list(photos.glob("*.xmp"))
    assert not (tmp_path / "a").exists()
    assert tag("a")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in photos.parent.rglob("*")}
    code, out, err = tag("a", "--dry-run", "--xmp-root", "", "--json")
    assert json.loads(out)["sidecars"] == len(json.loads(out)["changes"]) == 2
    assert {path: path.stat().st_mtime_ns for path in photos.parent.rglob("*")} == before
    assert tag("a")[0] == 0


def test_root_can_be_named_or_left_out(tag: Run, photos: Path) -> None:
    sidecar = photos / "00.png.xmp"
    for root, prefix in (("archive/found", "archive/found/"), ("", ""), ("tags", "tags/")):
        assert tag("a", "--xmp-root", root)[0] == 0
        assert {*read_trees(sidecar)} == {f"{prefix}cat", f"{prefix}dog"}
    for wrong in ("a|b", "a//b", "a\x1b"):
        assert_refused(partial(tag, "a", "--xmp-root", wrong), "must be a tag, as archive")
    assert tag("a")[0] == 0


def test_remove_leaves_the_sidecars_of_the_user(tag: Run, run: Run, photos: Path) -> None:
    mine, other = photos / "00.png.xmp", photos / "01.png.xmp"
    mine.write_bytes(PLAIN.replace(b">cat<", b">cow<"))
    before = read_tags(mine)
    assert tag("a")[0] == 0
    command = partial(run, "sidecars", photos)
    assert command("CAT", "--remove")[0] == 0
    assert "cat" not in str([*read_tags(mine).values(), *read_tags(other).values()])
    assert tag("a")[0] == 0
    assert "cat" in str(read_tags(mine))
    for path in (mine, other):
        content = path.read_text()
        path.write_text(content.replace("<rdf:li>ml-decoder/cat</rdf:li>", "", 1))
    assert "2 deleted tags not written again" in tag("a")[1]
    assert "; deleted: cat\n" in command()[1]
    told = "2 tags removed, 1 sidecars deleted\n"
    assert command("--remove") == (0, told, "")
    assert not other.exists()
    assert read_tags(mine) == before
    assert b"mld" not in mine.read_bytes().replace(b"ml-decoder", b"mld")
    assert_refused(run, "none is not a folder", "sidecars", "none")
    mine.write_bytes(b"ml-decoder")
    assert command()[:2] == (1, "0 sidecars with 0 tags, 0 deleted by you\n")
    mine.unlink()
    assert tag("a")[0] == 0
