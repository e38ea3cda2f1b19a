"""Processes map the same file of an array, which goes with its last user."""

from pathlib import Path

import numpy as np
import pytest

from service.engine.shared_arrays import ArrayReader, SharedArrays

LARGE = np.arange(2**19, dtype=np.float32).reshape(-1, 64)


def make_other(value: float) -> np.ndarray:
    other = LARGE.copy()
    other[0, 0] = value
    return other


def test_large_arrays_of_the_same_content_are_one_file(tmp_path: Path) -> None:
    first, second = (SharedArrays(tmp_path, owner) for owner in (1, 2))
    ours, theirs = first.share(LARGE.copy()), second.share(LARGE.copy())
    assert first.share(LARGE.copy()) is ours
    others = [second.share(each) for each in (make_other(0.5), LARGE.astype(np.float64))]
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
    assert ArrayReader().read(other.publish(kept) or Path()).tobytes() == LARGE.tobytes()
    assert inode == (other.publish(kept) or Path()).stat().st_ino
    np.testing.assert_array_equal(left[0], LARGE)  # a mapping outlives its file


def test_small_arrays_are_published_but_not_mapped(tmp_path: Path) -> None:
    first, second, reader = SharedArrays(tmp_path, 1), SharedArrays(tmp_path, 2), ArrayReader()
    small = np.arange(6, dtype=np.int64).reshape(2, 3)
    assert first.share(small) is small
    assert not list(tmp_path.iterdir())
    link, same = first.publish(small), small.copy()
    assert link is not None
    assert first.publish(small) == link
    read = reader.read(link)
    np.testing.assert_array_equal(read, small)
    assert not read.flags.writeable
    assert reader.read(second.publish(same) or Path()) is read
    del small
    assert not link.exists()
    with pytest.raises(FileNotFoundError):
        ArrayReader().read(link)
    del same
    first.publish(more := np.ones(3))
    link = first.publish(more)
    assert link is not None
    reader.read(link)
    assert len(reader._read) == 1  # without the one that no process uses


def test_full_folder_leaves_a_process_its_own_array(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays, own = SharedArrays(tmp_path / "missing", 1), LARGE.copy()
    assert arrays.share(own) is own
    caplog.clear()
    assert [arrays.publish(own) for _ in range(2)] == [None, None]
    assert len(caplog.messages) == 1  # the next batch does not try it again
    assert "is not shared between processes: No such file or directory: check" in caplog.text
    del own
