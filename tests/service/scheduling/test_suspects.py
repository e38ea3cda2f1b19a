"""Photos of a crashed worker are refused for 10 seconds; a real crash is in `tests/faults`."""

import time

import pytest

from service.errors import PhotoSuspected
from service.scheduling.suspects import Suspects

PHOTO, OTHER = b"photo" * 1000, b"other" * 1000
CRASH = b"Fatal Python error: Segmentation fault\n"


def write_report(suspects: Suspects, worker: int) -> None:
    """Does what `faulthandler` does in a worker that crashes."""
    suspects._reports[worker - 1][: len(CRASH)] = CRASH


def is_refused(suspects: Suspects, photo: object, worker: int = 2) -> bool:
    try:
        with suspects.note(worker, photo):
            return False
    except PhotoSuspected:
        return True


def test_photo_in_work_is_refused_from_the_crash_until_10_seconds_after_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suspects = Suspects(2)
    with suspects.note(1, OTHER), suspects.note(1, PHOTO):
        assert not is_refused(suspects, PHOTO)
        write_report(suspects, 1)
        assert is_refused(suspects, PHOTO)  # before the supervisor knows
        ended = time.monotonic_ns()
        assert suspects.end(1) == (CRASH.decode(), 2)
    assert is_refused(suspects, PHOTO)
    assert is_refused(suspects, OTHER)
    assert is_refused(suspects, PHOTO, worker=1)
    assert not is_refused(suspects, PHOTO[:-1])
    assert not is_refused(suspects, object())
    monkeypatch.setattr(time, "monotonic_ns", lambda: ended + 11 * 10**9)
    assert not is_refused(suspects, PHOTO)


def test_second_crash_keeps_the_suspects_of_the_first() -> None:
    suspects = Suspects(2)
    for worker, photo in ((1, PHOTO), (2, OTHER)):
        with suspects.note(worker, photo):
            write_report(suspects, worker)
            assert suspects.end(worker)[1] == 1
    assert is_refused(suspects, PHOTO)
    assert is_refused(suspects, OTHER)


def test_worker_that_ends_without_a_crash_leaves_no_suspects() -> None:
    suspects = Suspects(1)
    with suspects.note(1, PHOTO):
        assert suspects.end(1) == ("", 0)
    assert not is_refused(suspects, PHOTO, worker=1)


def test_photos_beyond_the_places_are_passed_on() -> None:
    suspects = Suspects(1)
    suspects._free.clear()
    assert not is_refused(suspects, PHOTO, worker=1)
