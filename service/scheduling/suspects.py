"""Photos that may have ended a worker process; the other workers refuse them for 10 seconds.

A worker that crashes in a decoder cannot send anything. So it notes its photos in shared memory,
where `faulthandler` writes its stack too, before its connections are closed: a client that sends
the photo to another worker at once is refused.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from service.errors import PhotoSuspected

# Photos of one worker at a time, and suspects. More are not noted.
_SLOTS = 256
# A digest of both ends: the whole of a small JPEG would take 10 us.
_END_BYTES = 512
_REPORT_BYTES = 65536


class Suspects:
    """The photos that each worker processes, and the suspects of all; made before the fork.

    `note` and `watch` are for workers, `end` is for the supervisor.
    """

    def __init__(self, workers: int) -> None:
        # Until when (ns of the monotonic clock, which all processes share), then `_SLOTS` digests
        # of suspects, then of each worker from 1; 0 is an empty slot.
        self._memory = memoryview(mmap.mmap(-1, 8 * (1 + _SLOTS * (1 + workers)))).cast("q")
        self._files = [os.memfd_create("report") for _ in range(workers)]
        for file in self._files:
            os.ftruncate(file, _REPORT_BYTES)
        self._reports = [mmap.mmap(file, _REPORT_BYTES) for file in self._files]
        self._free = list(range(_SLOTS))  # of this process

    def watch(self, worker: int) -> None:
        """Lets a crash of this process, the worker, write the stack of its thread."""
        faulthandler.enable(self._files[worker - 1], all_threads=False)

    @contextmanager
    def note(self, worker: int, photo: object) -> Iterator[None]:
        """Notes a photo while this worker processes it. Raises `PhotoSuspected` for a suspect."""
        if not isinstance(photo, bytes) or not self._free:
            yield
            return
        # Forked processes share the key of Python's hash.
        digest = hash((len(photo), photo[:_END_BYTES], photo[-_END_BYTES:])) or 1
        for number, report in enumerate(self._reports, 1):
            if report[0] and digest in self._list_slots(number):
                raise PhotoSuspected
        if time.monotonic_ns() < self._memory[0] and digest in self._list_slots(0):
            raise PhotoSuspected
        position = self._free.pop()
        slots = self._list_slots(worker)
        slots[position] = digest
        try:
            yield
        finally:
            slots[position] = 0
            self._free.append(position)

    def end(self, worker: int) -> tuple[str, int]:
        """Forgets a worker that has ended; returns its stack and its suspects if it crashed."""
        report, slots, suspects = self._reports[worker - 1], *map(self._list_slots, (worker, 0))
        stack = report[:].rstrip(b"\0")
        photos = [digest for digest in slots if digest] if stack else []
        if photos:
            now = time.monotonic_ns()
            known = suspects.tolist() if now < self._memory[0] else []
            for position, digest in enumerate([*photos, *known][:_SLOTS]):
                suspects[position] = digest
            self._memory[0] = now + int(PhotoSuspected.retry_after_seconds * 1e9)
        for position in range(_SLOTS):
            slots[position] = 0
        report[: len(stack)] = bytes(len(stack))
        os.lseek(self._files[worker - 1], 0, os.SEEK_SET)
        return stack.decode(errors="replace"), len(photos)

    def _list_slots(self, worker: int) -> memoryview[int]:
        return self._memory[1 + _SLOTS * worker :][:_SLOTS]
