"""Tests of the command line, run as `main()` in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from service.bundle import Bundle
from service.cli import commands as cli
from service.cli.flags import name_flag, name_variable
from service.settings import Settings
from tests.photos import make_photo

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line; returns exit code, stdout and stderr."""
    monkeypatch.setenv("ML_DECODER_DEVICE", "cpu")
    monkeypatch.setenv("COLUMNS", "200")

    def run_main(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ml-decoder", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capsys.readouterr()
        code = stopped.value.code
        return (code if isinstance(code, int) else 0), out, err

    return run_main


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
    assert "broken.png: The image is damaged or no image" in err


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
        (("--device", "toaster"), "--device or ML_DECODER_DEVICE: "),
        (("--bundle", "/none"), "/none is not a bundle"),
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
    monkeypatch.setattr(cli, "run_server", served.append)
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
