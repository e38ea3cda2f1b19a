"""Paths on the command line: empty ones, names of any bytes, long ones, and closed folders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.bundle.reader import Bundle
from service.images.folders import find_photos
from tests.service.cli.conftest import Run
from tests.support.photos import make_photo

_NOBODY = 65534


@pytest.mark.parametrize(
    "arguments",
    [
        *(("predict", ""), ("bench", ""), ("bulk", "", "out"), ("bulk", "in", ""), ("info", "")),
        *(("labels", "add", "zoo", "--file", ""), ("labels", "calibrate", "zoo", "--photos", "")),
        *(("serve", "--host", ""), ("serve", "--label-sets", ""), ("labels", "list", "--bundle=")),
    ],
)
def test_value_that_an_unset_variable_left_empty_is_refused(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tiny_bundle: Bundle,
    tmp_path: Path,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").write_bytes(make_photo())
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is empty" in err
    assert run("predict", "--bundle", tiny_bundle.path, ".")[0] == 0


@pytest.mark.parametrize("form", ["csv", "table"])
@pytest.mark.parametrize(
    ("encoding", "written"),
    [("utf-8", [b"1\xff.png", "2日.png".encode()]), ("ascii", [rb"1\udcff.png", rb"2\u65e5.png"])],
)
def test_name_that_stdout_cannot_spell_does_not_end_the_run(
    tiny_bundle: Bundle, tmp_path: Path, form: str, encoding: str, written: list[bytes]
) -> None:
    for name in (b"1\xff.png", "2日.png".encode()):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(make_photo())
    flags = ("--bundle", tiny_bundle.path, "--device", "cpu", "--format", form)
    found = subprocess.run(
        [sys.executable, "-m", "service", "predict", *flags, tmp_path],
        env={**os.environ, "PYTHONIOENCODING": f"{encoding}:strict", "COLUMNS": "200"},
        capture_output=True,
    )
    assert (found.returncode, found.stderr) == (0, b"")
    assert all(name in found.stdout for name in written)


def test_path_stands_over_its_table_in_one_line(
    run: Run, tiny_bundle: Bundle, tmp_path: Path
) -> None:
    photo = tmp_path / f"{'long ' * 40}.png"
    photo.write_bytes(make_photo())
    _, out, _ = run("predict", "--bundle", tiny_bundle.path, photo)
    assert out.splitlines()[0] == str(photo)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read everything."""
    own = os.geteuid()
    os.seteuid(_NOBODY if own == 0 else own)
    try:
        yield
    finally:
        os.seteuid(own)


def test_folder_that_cannot_be_read_is_told_like_a_photo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # nobody may not come here by the whole path
    for folder in (Path("open"), Path("open/shut")):
        folder.mkdir()
        (folder / "a.png").write_bytes(make_photo())
    tmp_path.chmod(0o755)
    shut = Path("open/shut")
    shut.chmod(0)
    with as_nobody():
        assert find_photos([Path("open")])[0] == [Path("open/a.png"), shut]
        with pytest.raises(PermissionError):
            shut.read_bytes()
    shut.chmod(0o755)
    assert find_photos([Path("open")])[0] == [Path("open/a.png"), shut / "a.png"]
