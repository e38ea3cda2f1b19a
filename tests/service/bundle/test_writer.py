"""A draft is written whole or not at all, and replaces nothing but a bundle."""

import os
from pathlib import Path

import pytest

from service.bundle.reader import load_bundle
from service.bundle.writer import check_target
from service.errors import BundleError
from tests.support.tiny_bundle import TINY_LABELS, Graphs, tiny_card, tiny_graphs, write_tiny_bundle


def test_invalid_draft_leaves_the_old_bundle_and_no_other_files(tmp_path: Path) -> None:
    old = write_tiny_bundle(tmp_path)
    with pytest.raises(BundleError, match="labels; it has"):
        write_tiny_bundle(tmp_path, labels=TINY_LABELS[:3])
    assert load_bundle(old.path) == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny"]


def test_new_bundle_replaces_the_old_one_whole(tmp_path: Path) -> None:
    write_tiny_bundle(tmp_path)
    graphs = tiny_graphs()
    only_fp32: Graphs = {name: {"fp32": variants["fp32"]} for name, variants in graphs.items()}
    new = write_tiny_bundle(tmp_path, graphs=only_fp32)
    assert load_bundle(new.path).precisions() == ("fp32",)
    assert not (new.path / "encoder.int8.onnx").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny"]


@pytest.mark.parametrize("kind", ["file", "folder", "bundle and more", "link"])
def test_something_else_than_a_bundle_is_not_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tiny"
    if kind == "link":
        path.symlink_to(write_tiny_bundle(tmp_path / "elsewhere").path)
    elif kind == "bundle and more":
        write_tiny_bundle(tmp_path)
    elif kind == "folder":
        path.mkdir()
    if kind != "link":
        (path if kind == "file" else path / "notes.txt").write_text("kept")
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(BundleError, match="tiny exists and is not a bundle"):
        write_tiny_bundle(tmp_path)

    assert sorted(tmp_path.rglob("*")) == before
    empty = tmp_path / "empty" / "tiny"
    empty.mkdir(parents=True)
    assert load_bundle(write_tiny_bundle(empty.parent).path).path == empty
    check_target(empty)  # a bundle by now


def test_old_bundle_is_put_back_if_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, rename = write_tiny_bundle(tmp_path), os.replace

    def refuse_the_new(source: Path, target: Path) -> None:
        if target == old.path and "-old-" not in str(source):
            raise PermissionError
        rename(source, target)

    monkeypatch.setattr(os, "replace", refuse_the_new)
    with pytest.raises(PermissionError):
        write_tiny_bundle(tmp_path, tiny_card().model_copy(update={"version": "2"}))

    assert load_bundle(old.path) == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny"]
