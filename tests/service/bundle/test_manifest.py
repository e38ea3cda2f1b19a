"""An invalid manifest is refused with a reason in one line."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.bundle.reader import Bundle, load_bundle
from service.errors import BundleError
from tests.support.tiny_bundle import SCREEN, copy_bundle, edit_manifest


def make_metric(value: float) -> dict[str, Any]:
    return {"name": "mAP", "value": value, "precision": "fp32", "dataset": "d", "images": 1}


def test_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is not a bundle"):
        load_bundle(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '"x"', "[" * 100_000])
def test_manifest_that_is_not_an_object_is_refused(
    tiny_bundle: Bundle, tmp_path: Path, text: str
) -> None:
    path = copy_bundle(tiny_bundle, tmp_path)
    (path / "manifest.json").write_text(text)
    with pytest.raises(BundleError, match=r"manifest\.json is not a JSON object"):
        load_bundle(path)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda m: m.update(schema_version=6), "schema_version is 6, this service reads 1 to 5"),
        (lambda m: m.update(extra=1), "extra: Extra inputs"),
        (lambda m: m["card"].pop("version"), r"card\.version: Field required"),
        (lambda m: m["card"].update(name="../up"), r"card\.name"),
        (lambda m: m["card"]["input"].update(crop_pct=0), r"card\.input\.crop_pct"),
        (lambda m: m["card"]["trained_head"].update(num_labels=4), "must have 4 labels; it has 5"),
        (
            lambda m: m["card"]["open_head"].update(by_purpose={"recall": {"threshold": 1.5}}),
            r"card\.open_head\.by_purpose\.recall\.threshold",
        ),
        (
            lambda m: m["card"]["open_head"]["embedding_space"].update(descriptions=10**9),
            "descriptions must divide width",
        ),
        (lambda m: m["files"].pop("labels.json"), "lists no labels.json"),
        (lambda m: m["graphs"].pop("encoder"), "lists no encoder graph"),
        (lambda m: m["graphs"]["encoder"].update(fp32="other.onnx"), "not among the manifest"),
        (lambda m: m["card"].update(default_precision={"cpu": "fp16"}), "variant that is absent"),
        (
            lambda m: m["graphs"].update(screened_head=m["graphs"]["open_head"]),
            "screened_head belongs to no screen of the manifest",
        ),
        (
            lambda m: m["card"]["open_head"].update(screen=SCREEN.model_dump()),
            "lists no screened_head graph",
        ),
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
    open_bundle: Bundle, tmp_path: Path, edit: Callable[[dict[str, Any]], None], reason: str
) -> None:
    path = copy_bundle(open_bundle, tmp_path)
    edit_manifest(path, edit)
    with pytest.raises(BundleError, match=reason) as caught:
        load_bundle(path)
    assert "\n" not in str(caught.value)
    assert load_bundle(open_bundle.path) == open_bundle


def test_bundle_of_an_older_schema_is_read(open_bundle: Bundle, tmp_path: Path) -> None:
    path = copy_bundle(open_bundle, tmp_path)
    for version in (1, 2, 3, 4):
        edit_manifest(path, lambda m, version=version: m.update(schema_version=version))
        assert load_bundle(path).card == open_bundle.card


@pytest.mark.parametrize(
    ("file", "reason"),
    [("manifest.json", "no readable manifest"), ("labels.json", r"labels\.json cannot be")],
)
@pytest.mark.parametrize("put", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_pipe_or_device_in_place_of_a_file_is_refused_unread(
    tiny_bundle: Bundle, tmp_path: Path, put: Callable[[Path], None], file: str, reason: str
) -> None:
    path = copy_bundle(tiny_bundle, tmp_path)
    edit_manifest(path, lambda m: m["files"]["labels.json"].update(bytes=0))  # as a pipe has
    (path / file).unlink()
    put(path / file)
    # Reading the pipe would block, and reading the device would never end.
    with pytest.raises(BundleError, match=reason):
        load_bundle(path)
