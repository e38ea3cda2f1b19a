"""Processes map the same file of an array, which goes with its last user."""

from pathlib import Path

import numpy as np
import pytest

from service.engine.shared_arrays import SharedArrays

LARGE = np.arange(2**19, dtype=np.float32).reshape(-1, 64)


def make_other(value: float) -> np.ndarray:
    other = LARGE.copy()
    other[0, 0] = value
    return other


def test_large_arrays_of_the_same_content_are_one_file(tmp_path: Path) -> None:
    first, second = (SharedArrays(tmp_path, owner) for owner in (1, 2))
    ours, theirs = first.share(LARGE.copy()), second.share(LARGE.copy())
    assert first.share(LARGE.copy()) is ours
    others = [second.share(array) for array in (make_other(0.5), LARGE.astype(np.float64))]
    np.testing.assert_array_equal(ours, LARGE)
    assert not ours.flags.writeable
    assert len({file.stat().st_ino for file in tmp_path.iterdir()}) == 3
    del theirs, others
    assert len({file.stat().st_ino for file in tmp_path.iterdir()}) == 1
    np.testing.assert_array_equal(second.share(make_other(0.0)), LARGE)
    del ours
    assert not list(tmp_path.iterdir())


def test_files_of_a_killed_process_go_when_its_replacement_starts(tmp_path: Path) -> None:
    killed, other = SharedArrays(tmp_path, 1), SharedArrays(tmp_path, 11)
    left = killed.share(LARGE.copy()), killed.share(make_other(1.0))
    kept = other.share(LARGE.copy())
    SharedArrays(tmp_path, 1)
    (inode,) = {file.stat().st_ino for file in tmp_path.iterdir()}
    assert other.share(LARGE.copy()) is kept
    assert inode == next(tmp_path.iterdir()).stat().st_ino
    np.testing.assert_array_equal(left[0], LARGE)  # a mapping outlives its file


def test_small_arrays_are_not_shared(tmp_path: Path) -> None:
    small = np.arange(6, dtype=np.int64).reshape(2, 3)
    assert SharedArrays(tmp_path, 1).share(small) is small
    assert not list(tmp_path.iterdir())


def test_full_folder_leaves_a_process_its_own_array(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    array = LARGE.copy()
    assert SharedArrays(tmp_path / "missing", 1).share(array) is array
    assert "is not shared between processes: No such file or directory: check" in caplog.text
