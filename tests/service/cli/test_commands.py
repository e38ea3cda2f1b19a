"""Help, version, completion, `info` and `export`."""

import json
import re
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from service.bundle.card import BackgroundPhotos
from service.bundle.reader import Bundle
from service.bundle.writer import write_bundle
from service.cli import get, options
from tests.service.cli.conftest import Run, assert_refused, run_without
from tests.support import tiny_bundle as tiny_bundles
from tests.support.tiny_bundle import make_calibration, open_draft, tiny_card, write_tiny_bundle


def test_info_shows_the_card_as_table_or_json(run: Run, tiny_bundle: Bundle) -> None:
    code, table, _ = run("info", tiny_bundle.path)
    assert (code, "Apache-2.0" in table, "person" in table) == (0, True, True)
    assert "cpu fp32, openvino fp32 (bf16 where the processor has it), cuda fp32" in table
    card = json.loads(run("info", "--json", tiny_bundle.path)[1])
    assert card["name"] == "tiny"
    assert [label["name"] for label in card["labels"]] == [la.name for la in tiny_bundle.labels]
    devices = ("cpu", "openvino", "cuda", "tensorrt")
    assert card["default_precision"] == dict.fromkeys(devices, "fp32")


def test_info_shows_default_precision_and_calibration(
    run: Run, tmp_path: Path, tiny_bundle: Bundle
) -> None:
    head = tiny_bundle.card.trained_head
    changes = {
        "default_precision": {"cpu": "int8"},
        "trained_head": head.model_copy(update={"calibration": make_calibration(2.0, 0.5)}),
        "background": BackgroundPhotos(dataset="holiday", images=2000),
    }
    bundle = write_tiny_bundle(tmp_path, tiny_card("small").model_copy(update=changes))
    table = run("info", bundle.path)[1]
    assert "cpu int8 (fp32 without VNNI), openvino int8 (fp32 without VNNI), cuda fp32" in table
    assert "calibrated on 100 photos of made/val: error 0.010, 0.200 before" in table
    assert re.search(r"background +│ 2,000 photos of holiday", table)


def test_info_shows_the_threshold_that_labels_without_their_own_have(
    run: Run, tmp_path: Path
) -> None:
    bundle = write_tiny_bundle(tmp_path, tiny_card("old"))
    manifest = json.loads((bundle.path / "manifest.json").read_text())
    for stored, shown in ((None, 0.5), (0.68, 0.68)):  # older bundles have null
        manifest["card"]["trained_head"]["threshold"] = stored
        (bundle.path / "manifest.json").write_text(json.dumps(manifest))
        assert f"threshold {shown} unless a label has its own" in run("info", bundle.path)[1]


def test_info_shows_thresholds_by_purpose(run: Run, tmp_path: Path) -> None:
    table = run("info", tiny_bundles.write_measured_bundle(tmp_path).path)[1]
    assert re.search("open labels, recall +│ precision 0.60, recall 0.80, threshold 0.125", table)
    assert re.search(r"│ cat +│ 0.400 .*│ 0.550 +│ 0.062 +│ not reached │", table)
    assert re.search(r"│ tree +│ - .*│ - +│ - +│ - +│", table)  # no photos


def test_info_refuses_a_bundle_with_an_unusable_label_set(run: Run, tmp_path: Path) -> None:
    draft = open_draft(encodes_text=False)
    sets = {"zoo.json": b'{"labels": ["yak"]}'}
    bundle = write_bundle(tmp_path / draft.card.name, replace(draft, label_sets=sets))
    assert_refused(run, "label set zoo.json: This model encodes no text", "info", bundle.path)


def test_export_names_the_extra_if_torch_is_missing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "find_spec", lambda _name: None)
    assert_refused(run, "'.[export]' in the checkout", "export", "--out", "x")
    assert_refused(run, "'.[get]' in the checkout", "export", "--bundle", "x")


def test_export_passes_its_arguments_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(options, "find_spec", lambda name: name)
    monkeypatch.setattr(
        get.runpy, "run_module", lambda name, **_: passed.append((name, list(sys.argv)))
    )
    run("export", "--out", "x", "--help", "y")
    assert passed == [("export", ["ml-decoder export", "--out", "x", "--help", "y"])]


def test_commands_name_the_extra_if_onnx_runtime_is_missing() -> None:
    commands = (["serve"], ["predict", "x.jpg"], ["labels", "list"], ["bulk", "in", "out"])
    done = run_without(["onnxruntime"], *commands)
    reason = "ONNX Runtime is missing: pip install -e '.[cpu]' in the checkout, or '.[gpu]'"
    assert (done.returncode, done.stderr) == (2, f"ml-decoder: {reason}\n" * 4)


def test_version_is_the_version_of_the_package(run: Run) -> None:
    assert run("--version") == (0, f"ml-decoder-serve {version('ml-decoder-serve')}\n", "")


def test_command_without_arguments_shows_its_help(run: Run) -> None:
    for arguments in ((), ("labels",)):
        code, out, err = run(*arguments)
        assert (code, err) == (0, "")
        assert "Usage: ml-decoder" in out
    assert "Exit codes" in run()[1]
