"""Tests of the command line, run as `main()` in this process."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from service.bundle.reader import Bundle
from service.cli import commands as cli
from service.cli import serve as serving
from service.cli.options import name_flag, name_variable
from service.settings import Settings
from tests.e2e.server_process import ROOT
from tests.service.cli.conftest import Run
from tests.support.fake_service import run_fake
from tests.support.photos import make_photo
from tests.support.tiny_bundle import tiny_card, write_tiny_bundle


@pytest.fixture
def run(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")
    return run


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Three files: good, broken, good; one name looks like rich markup."""
    paths = [tmp_path / name for name in ("a[red].png", "broken.png", "c.png")]
    for path, content in zip(paths, (make_photo(1), b"junk", make_photo(2)), strict=True):
        path.write_bytes(content)
    return paths


def test_broken_photo_is_reported_and_the_others_are_shown(
    run: Run, tiny_bundle: Bundle, photos: list[Path]
) -> None:
    code, out, err = run("predict", "--bundle", tiny_bundle.path, "--top-k", 2, *photos)
    assert code == 1
    assert "a[red].png" in out
    assert "c.png" in out
    assert "broken.png: The file is damaged or is not an image" in err


def test_star_at_a_threshold_is_explained_below_its_table(
    run: Run, tiny_bundle: Bundle, photos: list[Path]
) -> None:
    flags = ("--bundle", tiny_bundle.path, "--include", "cat")
    _, own, _ = run("predict", *flags, "--top-k", 1, photos[0])
    assert "*" not in own
    _, given, _ = run("predict", *flags, "--threshold", 0, photos[0])
    assert "0.000 *" in given
    assert given.splitlines()[-1] == "* not the label's own threshold"


def test_json_is_one_object_for_each_photo_in_order(
    run: Run, tiny_bundle: Bundle, photos: list[Path]
) -> None:
    flags = ("--json", "--include", "cat", "--include", "dog", "--threshold", "0")
    _, out, _ = run("predict", "--bundle", tiny_bundle.path, *flags, *photos)
    first, second, third = map(json.loads, out.splitlines())
    assert [record["photo"] for record in (first, second, third)] == list(map(str, photos))
    assert {label["label"] for label in first["labels"]} == {"cat", "dog"}
    assert second["error"]
    assert third["image"] == {"width": 48, "height": 32}


def test_folder_stands_for_the_photos_in_it_and_below(
    run: Run, tiny_bundle: Bundle, photos: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("no photo")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "d.PNG").write_bytes(make_photo(4))
    code, out, err = run("predict", "--bundle", tiny_bundle.path, "--json", tmp_path)
    found = [json.loads(line)["photo"] for line in out.splitlines()]
    assert found == sorted([*map(str, photos), str(tmp_path / "below" / "d.PNG")])
    assert (code, err) == (1, "1 file left out (1 .txt)\n"), "a bar is only for who watches"


def test_folder_without_photos_is_one_line(run: Run, tiny_bundle: Bundle, tmp_path: Path) -> None:
    code, out, err = run("predict", "--bundle", tiny_bundle.path, tmp_path)
    assert (code, out) == (2, "")
    assert err == f"ml-decoder: {tmp_path} contains no photos\n"


def test_csv_has_a_row_for_each_label_and_each_failure(
    run: Run, tiny_bundle: Bundle, photos: list[Path]
) -> None:
    flags = ("--format", "csv", "--top-k", "2")
    code, out, _ = run("predict", "--bundle", tiny_bundle.path, *flags, *photos)
    rows = list(csv.DictReader(out.splitlines()))
    assert code == 1
    assert [Path(row["photo"]).name for row in rows] == [
        *("a[red].png", "a[red].png", "broken.png", "c.png", "c.png")
    ]
    assert rows[2]["error"] == "The file is damaged or is not an image"
    assert all(0 <= float(row["score"]) <= 1 for row in rows if not row["error"])


def test_all_photos_good_is_exit_code_0(run: Run, tiny_bundle: Bundle, photos: list[Path]) -> None:
    assert run("predict", "--bundle", tiny_bundle.path, photos[0])[0] == 0


def test_photo_that_is_not_there_is_reported(run: Run, tiny_bundle: Bundle, tmp_path: Path) -> None:
    code, _, err = run("predict", "--bundle", tiny_bundle.path, tmp_path / "none.png")
    assert (code, "none.png: No such file or directory" in err) == (1, True)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--include", "unicorn"), "A label is unknown: 'unicorn'."),
        (("--top-k", "0"), "top_k: Input should be greater than or equal to 1"),
        (("--threshold", "often"), "threshold: Input should be a number from 0 to 1"),
        (("--device", "toaster"), "ML_DECODER_DEVICE: Input should be 'auto', 'cpu', "),
        (
            ("--bundle", "/none"),
            "the folder does not exist: set --bundle",
        ),
        (("--topk", "3"), "No such option: --topk"),
        (("--format", "xml"), "'xml' is not one of 'table', 'json', 'csv'"),
    ],
)
def test_error_that_a_person_can_mend_is_one_line(
    run: Run, tiny_bundle: Bundle, photos: list[Path], flags: tuple[str, str], reason: str
) -> None:
    code, out, err = run("predict", "--bundle", tiny_bundle.path, *flags, photos[0])
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert reason in err


def test_variable_out_of_range_stops_the_start(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DECODER_PORT", "70000")
    code, _, err = run("serve")
    assert code == 2
    assert err.startswith("ml-decoder: --port or ML_DECODER_PORT: ")


def test_every_setting_is_a_flag_of_serve_with_its_variable_named(run: Run) -> None:
    code, out, _ = run("serve", "--help")
    assert code == 0
    for name in Settings.model_fields:
        assert name_flag(name) in out
        assert name_variable(name) in out


def test_flag_wins_over_variable_wins_over_default(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Settings] = []
    monkeypatch.setattr(serving, "serve_model", served.append)
    monkeypatch.setenv("ML_DECODER_PORT", "1111")
    run("serve")
    run("serve", "--port", "2222", "--max-wait-ms", "2.5")
    assert [settings.port for settings in served] == [1111, 2222]
    assert [settings.max_wait_ms for settings in served] == [0.0, 2.5]


def test_info_shows_the_card_as_table_and_as_json(run: Run, tiny_bundle: Bundle) -> None:
    code, table, _ = run("info", tiny_bundle.path)
    assert (code, "Apache-2.0" in table, "person" in table) == (0, True, True)
    card = json.loads(run("info", "--json", tiny_bundle.path)[1])
    assert card["name"] == "tiny"
    assert [label["name"] for label in card["labels"]] == [la.name for la in tiny_bundle.labels]


def test_info_tells_what_precision_auto_means_on_each_device(
    run: Run, tmp_path: Path, tiny_bundle: Bundle
) -> None:
    told = json.loads(run("info", "--json", tiny_bundle.path)[1])["default_precision"]
    assert told == dict.fromkeys(("cpu", "openvino", "cuda", "tensorrt"), "fp32")
    table = run("info", tiny_bundle.path)[1]
    assert "cpu fp32, openvino fp32 (bf16 where the processor has it), cuda fp32" in table

    card = tiny_card("small").model_copy(update={"default_precision": {"cpu": "int8"}})
    table = run("info", write_tiny_bundle(tmp_path, card).path)[1]
    assert "cpu int8, openvino int8, cuda fp32, tensorrt fp32" in table


def test_info_refuses_what_is_no_bundle(run: Run, tmp_path: Path) -> None:
    code, _, err = run("info", tmp_path)
    assert (code, len(err.splitlines())) == (2, 1)


def test_export_without_torch_names_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda _name: None)
    code, _, err = run("export", "--out", "x")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "ml-decoder-serve[export]" in err


def test_export_passes_its_arguments_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(
        cli.runpy, "run_module", lambda name, **_: passed.append((name, list(sys.argv)))
    )
    run("export", "--out", "x", "--help", "y")
    assert passed == [("export", ["ml-decoder export", "--out", "x", "--help", "y"])]


@pytest.mark.parametrize(
    "command", [["serve"], ["predict", "x.jpg"], ["labels", "list"], ["bulk", "in", "out"]]
)
def test_command_without_onnx_runtime_names_the_extra(command: list[str]) -> None:
    script = (
        "import sys; sys.modules['onnxruntime'] = None; "
        f"sys.argv = ['ml-decoder', *{command}]; from service.cli.__main__ import main; main()"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert found.returncode == 2
    assert found.stderr.splitlines()[-1] == (
        "ml-decoder: ONNX Runtime is missing: pip install 'ml-decoder-serve[cpu]', or [gpu]"
    )
    assert "Traceback" not in found.stderr


def test_bench_needs_no_onnx_runtime(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(make_photo())
    with run_fake() as (_, url):
        command = ["bench", "--url", url, "--seconds", "0.1", "--json", str(tmp_path)]
        script = (
            "import sys; sys.modules['onnxruntime'] = None; "
            f"sys.argv = ['ml-decoder', *{command}]; from service.cli.__main__ import main; main()"
        )
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}
        found = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True
        )
    assert (found.returncode, found.stderr) == (0, "")
    assert json.loads(found.stdout)["answers"] > 0


def test_version_is_the_packages(run: Run) -> None:
    assert run("--version") == (0, f"ml-decoder-serve {version('ml-decoder-serve')}\n", "")


def test_bare_command_shows_its_help(run: Run) -> None:
    for arguments in ((), ("labels",)):
        code, out, err = run(*arguments)
        assert (code, err) == (0, "")
        assert "Usage: ml-decoder" in out
    assert "Exit codes" in run()[1]


def test_every_command_shows_an_example(run: Run) -> None:
    for command in ("serve", "predict", "info", "bench", "labels add", "labels calibrate"):
        code, out, _ = run(*command.split(), "--help")
        assert code == 0
        assert out.count(f"ml-decoder {command} ") >= 2, "one in the usage, one to copy"


def test_shell_completion_knows_the_commands(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert "_ML_DECODER_COMPLETE" in run("--show-completion", "bash")[1]
    monkeypatch.setenv("_ML_DECODER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "ml-decoder pre")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert run()[1].split() == ["predict"]


def test_bench_counts_answers_and_errors(run: Run) -> None:
    with run_fake() as (service, url):
        code, out, err = run("bench", "--url", url, "--clients", 2, "--seconds", 0.3, "--json")
        figures = json.loads(out)
        assert (code, err, figures["errors"]) == (0, "", {})
        assert figures["answers"] == len(service.requests) - 1, "the first one is not counted"
        assert 0 < figures["p50_ms"] <= figures["p95_ms"] <= figures["p99_ms"]

        service.answers = [(200, {}), (429, {"Retry-After": "9"})]
        _, out, _ = run("bench", "--url", url, "--clients", 1, "--seconds", 0.1, "--json")
        figures = json.loads(out)
        assert figures["answers"] == 0
        assert figures["errors"]["429"] > 0, "refusals are counted, not tried again"

        service.answers = [(200, {}), (200, {"Content-Encoding": "gzip"})]
        _, out, _ = run("bench", "--url", url, "--clients", 1, "--seconds", 0.1, "--json")
        assert list(json.loads(out)["errors"]) == ["unreadable"]


def test_bench_without_a_service_or_a_client_is_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run("bench", "--url", "http://127.0.0.1:9")
    assert (code, len(err.splitlines())) == (2, 1)
    assert err.startswith("ml-decoder: cannot connect to http://127.0.0.1:9: ")
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda _name: None)
    code, _, err = run("bench")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "pip install ./client" in err


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--url", "http://localhost:abc"), "invalid url 'http://localhost:abc'"),
        (("--url", "http://localhost:65616"), "invalid url 'http://localhost:65616'"),
        (("--api-key", "clé"), "api_key must be printable ASCII"),
        (("--label-set", "\udcff"), r"invalid label set name '\udcff'"),
    ],
)
def test_bench_with_an_address_a_key_or_a_set_that_is_none_is_one_line(
    run: Run, flags: tuple[str, str], reason: str
) -> None:
    with run_fake() as (_, url):
        code, out, err = run("bench", "--url", url, *flags)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert reason in err
        assert run("bench", "--url", url, "--seconds", 0.1)[0] == 0
