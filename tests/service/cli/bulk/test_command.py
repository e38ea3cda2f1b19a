"""`ml-decoder bulk` as a command; `test_run` has what it does."""

import json
import os
from functools import partial
from pathlib import Path

import onnxruntime as ort
import pytest

from service.bundle.reader import Bundle
from service.cli.bulk import command
from tests.service.cli.conftest import Run
from tests.support.photos import make_photo

KEYS = ("tagged", "failed", "skipped", "unread", "failed_before", "left_out")
TOTALS = dict.fromkeys(KEYS, 0)


@pytest.fixture
def run(run: Run, monkeypatch: pytest.MonkeyPatch, tiny_bundle: Bundle) -> Run:
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(tiny_bundle.path))
    return partial(run, "bulk")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes(make_photo(number))
    return folder


def test_bulk_writes_totals_and_exits_with_1_after_failures(
    run: Run, photos: Path, tmp_path: Path
) -> None:
    assert run(photos, tmp_path / "a") == (0, "3 tagged, 0 failed, 0 done before\n", "")
    (photos / "bad.jpg").write_bytes(b"junk")
    code, out, err = run(photos, tmp_path / "a", "--json")
    assert (code, err) == (1, "")
    assert json.loads(out) == TOTALS | {"failed": 1, "skipped": 3}
    told = "0 tagged, 0 failed, 4 done before (1 of them failed)\n"
    assert run(photos, tmp_path / "a") == (1, told, "")
    (photos / "bad.jpg").write_bytes(make_photo())
    told = "1 tagged, 0 failed, 3 done before\n"
    assert run(photos, tmp_path / "a", "--retry-failed") == (0, told, "")


def test_bulk_names_unread_photos_and_recommends_another_run(
    run: Run, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(photos / "3.png")
    odd = photos / os.fsdecode(b"caf\xe9.png")
    odd.write_bytes(make_photo(3))
    told = "3 tagged, 0 failed, 0 done before, 2 not read: run it again for them\n"
    assert run(photos, tmp_path / "a")[:2] == (1, told)
    assert "3.png was not read: [Errno 22] Not a regular file" in caplog.text
    assert r"caf\xe9.png was not read: its name is not UTF-8: rename the file" in caplog.text
    (photos / "3.png").unlink()
    code, out, _ = run(photos, tmp_path / "a", "--retry-failed", "--json")
    assert (code, json.loads(out)) == (1, TOTALS | {"skipped": 3, "unread": 1})
    odd.rename(photos / "café.png")
    assert run(photos, tmp_path / "a") == (0, "1 tagged, 0 failed, 3 done before\n", "")


def test_bulk_counts_what_it_leaves_out(
    run: Run, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("@eaDir/0.png/THUMB.jpg", "__MACOSX/._0.png", "._1.png", "sea/4_small.png"):
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).write_bytes(b"junk")
    flags = ("--exclude-path", "*_small.*", "--json")
    code, out, _ = run(photos, tmp_path / "a", *flags)
    assert (code, json.loads(out)) == (0, TOTALS | {"tagged": 3, "left_out": 4})
    kinds = "1 @eaDir/; 1 __MACOSX/; 1 excluded; 1 hidden"
    assert f"{photos}: 2 files and 2 folders left out ({kinds})" in caplog.text


@pytest.mark.parametrize(
    ("missing", "extra", "flags"), [("pyarrow", "bulk", ()), ("ray", "ray", ("--ray",))]
)
def test_bulk_names_the_extra_of_a_missing_package(
    run: Run, monkeypatch: pytest.MonkeyPatch, missing: str, extra: str, flags: tuple[str, ...]
) -> None:
    found = {"pyarrow": object(), "ray": object()} | {missing: None}
    monkeypatch.setattr(command.importlib.util, "find_spec", found.__getitem__)
    reason = f"bulk needs {missing}: pip install -e '.[{extra}]' in the checkout\n"
    assert run("photos", "out", *flags) == (2, "", f"ml-decoder: {reason}")


@pytest.mark.skipif(
    "CUDAExecutionProvider" in ort.get_available_providers(), reason="a GPU may be found"
)
def test_bulk_warns_of_a_fallback_to_the_cpu(
    run: Run, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(photos, tmp_path / "out", "--device", "auto")[0] == 0
    assert "FALLING BACK to the CPU" in caplog.text
