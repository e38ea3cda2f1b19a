"""A bundle is read back as it was written, or it is refused with one line."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service import bundle_draft as draft_module
from service.bundle import Bundle, GraphName, load_bundle
from service.bundle_draft import check_target
from service.card import Label
from service.errors import BundleError
from tests.tiny_bundle import (
    TINY_LABELS,
    Graphs,
    tiny_card,
    tiny_encoder,
    tiny_graphs,
    write_tiny_bundle,
)


def copy_bundle(bundle: Bundle, folder: Path) -> Path:
    return Path(shutil.copytree(bundle.path, folder / bundle.path.name))


def edit_manifest(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    edit(manifest)
    file.write_text(json.dumps(manifest))


def make_metric(value: float) -> dict[str, Any]:
    return {"name": "mAP", "value": value, "precision": "fp32", "dataset": "d", "images": 1}


def test_bundle_is_read_back_as_it_was_written(tiny_bundle: Bundle) -> None:
    loaded = load_bundle(tiny_bundle.path)

    assert loaded == tiny_bundle
    assert loaded.card == tiny_card()
    assert loaded.labels == TINY_LABELS
    assert loaded.precisions() == ("fp32", "int8")
    graphs = tiny_graphs()
    assert loaded.read_graph("encoder", "int8") == graphs["encoder"]["int8"]
    assert loaded.read_graph("trained_head", "fp32") == graphs["trained_head"]["fp32"]


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(names, min_size=1, max_size=5, unique=True))
def test_any_label_names_survive_the_round_trip(tmp_path: Path, found: list[str]) -> None:
    labels = tuple(Label(name=name) for name in found)

    bundle = write_tiny_bundle(tmp_path, tiny_card(num_labels=len(labels)), labels)

    assert load_bundle(bundle.path).labels == labels


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_of_a_listed_file_is_refused(
    tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = copy_bundle(tiny_bundle, tmp_path_factory.mktemp("changed"))
    file = path / data.draw(st.sampled_from(sorted(tiny_bundle.manifest.files)))
    content = bytearray(file.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)

    with pytest.raises(BundleError, match="does not match its sha256"):
        load_bundle(path)


def test_truncated_file_is_refused(tiny_bundle: Bundle, tmp_path: Path) -> None:
    path = copy_bundle(tiny_bundle, tmp_path)
    file = path / "encoder.fp32.onnx"
    file.write_bytes(file.read_bytes()[:-1])

    with pytest.raises(BundleError, match=r"has \d+ bytes, manifest says"):
        load_bundle(path)


def test_file_that_changes_after_loading_is_refused(tiny_bundle: Bundle, tmp_path: Path) -> None:
    bundle = load_bundle(copy_bundle(tiny_bundle, tmp_path))
    file = bundle.path / "encoder.fp32.onnx"
    file.write_bytes(bytes(len(file.read_bytes())))

    with pytest.raises(BundleError, match="sha256"):
        bundle.read_graph("encoder", "fp32")


def test_missing_file_is_refused(tiny_bundle: Bundle, tmp_path: Path) -> None:
    path = copy_bundle(tiny_bundle, tmp_path)
    (path / "trained_head.fp32.onnx").unlink()

    with pytest.raises(BundleError, match="cannot be read"):
        load_bundle(path)


def test_folder_without_manifest_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is not a bundle"):
        load_bundle(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '"x"', "[" * 100_000])
def test_manifest_that_is_no_object_is_refused(
    tiny_bundle: Bundle, tmp_path: Path, text: str
) -> None:
    path = copy_bundle(tiny_bundle, tmp_path)
    (path / "manifest.json").write_text(text)

    with pytest.raises(BundleError, match=r"manifest\.json is not a JSON object"):
        load_bundle(path)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda m: m.update(schema_version=2), "schema version 2, this service reads 1"),
        (lambda m: m.update(extra=1), "extra: Extra inputs"),
        (lambda m: m["card"].pop("version"), r"card\.version: Field required"),
        (lambda m: m["card"].update(name="../up"), r"card\.name"),
        (lambda m: m["card"]["input"].update(crop_pct=0), r"card\.input\.crop_pct"),
        (lambda m: m["card"]["trained_head"].update(num_labels=4), "5 labels, manifest says 4"),
        (lambda m: m["files"].pop("labels.json"), "lists no labels.json"),
        (lambda m: m["graphs"].pop("encoder"), "lists no encoder graph"),
        (lambda m: m["graphs"]["encoder"].update(fp32="other.onnx"), "not among the manifest"),
        (lambda m: m["card"].update(default_precision={"cpu": "fp16"}), "variant that is absent"),
        *(
            (
                lambda m, name=name: m["files"].update({name: m["files"]["labels.json"]}),
                "is not a plain file name",
            )
            for name in ("../labels.json", "a\0b", "a\nb")
        ),
        *(
            (lambda m, value=value: m["card"].update(metrics=[make_metric(value)]), "finite number")
            for value in (float("nan"), float("inf"))
        ),
    ],
)
def test_inconsistent_manifest_is_refused_with_its_reason(
    tiny_bundle: Bundle, tmp_path: Path, edit: Callable[[dict[str, Any]], None], reason: str
) -> None:
    path = copy_bundle(tiny_bundle, tmp_path)
    edit_manifest(path, edit)

    with pytest.raises(BundleError, match=reason) as caught:
        load_bundle(path)

    assert "\n" not in str(caught.value)
    assert load_bundle(tiny_bundle.path) == tiny_bundle


@pytest.mark.parametrize("file", ["manifest.json", "labels.json"])
def test_pipe_or_device_in_place_of_a_file_is_refused_unread(
    tiny_bundle: Bundle, tmp_path: Path, file: str
) -> None:
    path = copy_bundle(tiny_bundle, tmp_path)
    content = (path / file).read_bytes()
    # Nothing is ever written to the pipe, and a reader of the device never comes to an end.
    for put in (os.mkfifo, lambda place: os.symlink("/dev/zero", place)):
        (path / file).unlink()
        put(path / file)
        edit_size_of_labels(path, 0)
        with pytest.raises(BundleError, match=r"no readable manifest|labels\.json cannot be"):
            load_bundle(path)
    (path / file).unlink()
    (path / file).write_bytes(content)
    edit_size_of_labels(path, (path / "labels.json").stat().st_size)
    assert load_bundle(path).labels == tiny_bundle.labels


def edit_size_of_labels(path: Path, size: int) -> None:
    """Has the manifest, where it can be read, tell another size of the labels."""
    if (path / "manifest.json").is_file():
        edit_manifest(path, lambda m: m["files"]["labels.json"].update(bytes=size))


def test_label_named_twice_is_refused(tmp_path: Path) -> None:
    twice = (*TINY_LABELS[:4], TINY_LABELS[0])

    with pytest.raises(BundleError, match="twice"):
        write_tiny_bundle(tmp_path, labels=twice)


def test_bad_draft_leaves_the_old_bundle_and_no_litter(tmp_path: Path) -> None:
    old = write_tiny_bundle(tmp_path)

    with pytest.raises(BundleError, match="labels, manifest says"):
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


def put_file(path: Path) -> None:
    path.write_text("kept")


def put_folder(path: Path) -> None:
    path.mkdir()
    (path / "model.safetensors").write_text("kept")


def put_bundle_and_more(path: Path) -> None:
    write_tiny_bundle(path.parent)
    (path / "notes.txt").write_text("kept")


def put_link(path: Path) -> None:
    write_tiny_bundle(path.parent / "elsewhere").path.rename(path.parent / "other")
    path.symlink_to(path.parent / "other")


@pytest.mark.parametrize("put", [put_file, put_folder, put_bundle_and_more, put_link])
def test_what_is_no_bundle_is_never_replaced(tmp_path: Path, put: Callable[[Path], None]) -> None:
    put(tmp_path / "tiny")
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(BundleError, match="tiny is there and is no bundle"):
        write_tiny_bundle(tmp_path)

    assert sorted(tmp_path.rglob("*")) == before
    empty = tmp_path / "empty" / "tiny"
    empty.mkdir(parents=True)
    assert load_bundle(write_tiny_bundle(empty.parent).path).path == empty
    check_target(empty)  # a bundle by now


def test_reader_finds_a_bundle_while_it_is_replaced(tmp_path: Path) -> None:
    path, tries = write_tiny_bundle(tmp_path).path, range(40)

    def replace_again_and_again() -> None:
        for seed in tries:
            encoders: Graphs = {"encoder": {"fp32": tiny_encoder(seed)}}
            write_tiny_bundle(tmp_path, graphs={**tiny_graphs(), **encoders})

    writer = threading.Thread(target=replace_again_and_again)
    writer.start()
    while writer.is_alive():
        assert load_bundle(path).labels == TINY_LABELS
    writer.join()
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny"]


def test_bundle_is_replaced_where_folders_cannot_change_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_module, "_exchange", lambda *_: False)
    write_tiny_bundle(tmp_path)

    new = write_tiny_bundle(tmp_path, tiny_card().model_copy(update={"version": "2"}))

    assert load_bundle(new.path).card.version == "2"
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny"]


def test_head_that_lacks_a_precision_runs_in_fp32(tmp_path: Path) -> None:
    graphs: Graphs = {**tiny_graphs()}
    graphs["trained_head"] = {"fp32": graphs["trained_head"]["fp32"]}

    bundle = write_tiny_bundle(tmp_path, graphs=graphs)

    assert bundle.precisions() == ("fp32", "int8")
    assert bundle.image_precision("encoder", "int8") == "int8"
    assert bundle.image_precision("trained_head", "int8") == "fp32"


@pytest.mark.parametrize("graph", ["encoder", "trained_head"])
def test_image_graph_without_fp32_is_refused(tmp_path: Path, graph: GraphName) -> None:
    graphs: Graphs = {**tiny_graphs()}
    graphs[graph] = {"int8": graphs[graph]["int8"]}
    with pytest.raises(BundleError, match=f"{graph} lacks the variant fp32"):
        write_tiny_bundle(tmp_path, graphs=graphs)
    assert write_tiny_bundle(tmp_path).precisions() == ("fp32", "int8")


def test_device_without_a_choice_takes_fp32(tmp_path: Path) -> None:
    card = tiny_card().model_copy(update={"default_precision": {"cpu": "int8"}})

    bundle = write_tiny_bundle(tmp_path, card)

    assert bundle.default_precision("cpu") == "int8"
    assert bundle.default_precision("cuda") == "fp32"
