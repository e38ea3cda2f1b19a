"""The engine's own process: runs the batches of the service's other processes, merged.

One GPU then has one context, one copy of the weights and label matrices, and larger batches.
"""

import logging
import math
import mmap
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.bundle.reader import Bundle
from service.engine.engine import Engine
from service.engine.heads import Head, HeadResults
from service.engine.remote import EngineFacts, Request, send, unpack_head
from service.engine.shared_arrays import ArrayReader
from service.errors import InferenceFailed, OutOfMemory, ServiceBroken, StartError

_MAX_TICKS = 10
_ORPHAN_SECONDS = 0.2
# Seconds and microseconds that a part of a message may take: a suspended worker must not stop
# the others.
_PATIENCE = struct.pack("ll", 1, 0)

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Channel:
    """A connection of another process, and the pixels of its request: one at a time."""

    connection: Connection
    pixels: NDArray[np.uint8]  # [B, H, W, 3]


@dataclass(eq=False)
class _Waiting:
    """A request of which `taken` images are in a run, or have been."""

    channel: _Channel
    request: Request
    heads: Sequence[Head]
    taken: int = 0
    results: dict[int, HeadResults] = field(default_factory=dict)  # by image
    failed: bool = False


@dataclass(frozen=True)
class _Part:
    """Images `start` to `stop` - 1 of a request, which are in one run."""

    waiting: _Waiting
    start: int
    stop: int


@dataclass(eq=False)
class _Run:
    """A running batch, and how many ticks of the watchdog it has lasted."""

    parts: Sequence[_Part]
    ticks: int = 0


class EngineServer:
    """Serves an engine to other processes of this user; see `RemoteEngine`.

    A free engine takes all images that wait, up to its batch size. A run of more than
    `max_run_seconds`, or an engine that fails on every batch, ends the process.
    """

    def __init__(
        self, engine: Engine, bundle: Bundle, address: Path, max_run_seconds: float
    ) -> None:
        """Listens at `address`, a path; raises `StartError` if it cannot."""
        self._engine = engine
        self._image_shape = bundle.card.input.shape
        self._facts = EngineFacts(
            device=engine.device,
            provider=engine.provider,
            precision=engine.precision,
            max_batch_size=engine.max_batch_size,
            small_batch_size=engine.small_batch_size,
            width=engine.width,
            files=bundle.manifest.files,
        )
        self._tick_seconds = max_run_seconds / _MAX_TICKS
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            address.unlink(missing_ok=True)  # of a process that was killed
            self._listener.bind(str(address))
        except OSError as error:
            self._listener.close()
            raise StartError(
                f"the engine cannot listen at {address}: {error}: set another TMPDIR"
            ) from error
        self._listener.listen()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._arrays = ArrayReader()
        self._waiting: deque[_Waiting] = deque()
        self._num_channels = 0
        self._taking, self._answering = threading.Lock(), threading.Lock()
        self._runs: set[_Run] = set()

    def serve(self, supervisor: Connection) -> None:
        """Serves until the supervisor has ended, and all processes that are connected."""
        for number in range(self._engine.workers):
            threading.Thread(target=self._work, name=f"infer-{number}", daemon=True).start()
        while not supervisor.poll(self._tick_seconds):  # it sends nothing
            self._watch()
        while self._num_channels:
            time.sleep(_ORPHAN_SECONDS)

    def _watch(self) -> None:
        """Counts ticks, not time: a suspended process is not taken for a hang."""
        runs = list(self._runs)
        for run in runs:
            run.ticks += 1
        if any(run.ticks > _MAX_TICKS for run in runs):
            logger.critical("a run of the engine hangs")
            os._exit(ServiceBroken.exit_code)

    def _work(self) -> None:
        try:
            while True:
                with self._taking:
                    run = _Run(self._take())
                self._runs.add(run)
                self._run(run.parts)
                self._runs.remove(run)
                del run  # an idle thread must not keep results
        except BaseException:
            logger.critical("the engine broke", exc_info=True)
            os._exit(ServiceBroken.exit_code)  # Python's own exit could wait for a hanging GPU

    def _take(self) -> Sequence[_Part]:
        """Waits for requests and returns the images of the next batch."""
        while not self._waiting:
            self._receive(None)
        self._receive(0)
        engine = self._engine
        images = sum(each.request.size - each.taken for each in self._waiting)
        share = math.ceil(images / engine.workers)
        left = min(engine.max_batch_size, max(engine.small_batch_size, share))
        parts = []
        while self._waiting and left:
            waiting = self._waiting[0]
            start, count = waiting.taken, waiting.request.size
            waiting.taken = min(count, start + left)
            left -= waiting.taken - start
            parts.append(_Part(waiting, start, waiting.taken))
            if waiting.taken == count:
                self._waiting.popleft()
        return parts

    def _receive(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            channel: _Channel | None = key.data
            try:
                if channel is None:
                    self._accept()
                else:
                    # A failure must not reach other processes' images in the same run.
                    request: Request = channel.connection.recv()
                    heads = [unpack_head(content, self._arrays) for content in request.heads]
                    self._waiting.append(_Waiting(channel, request, heads))
            except (OSError, EOFError) as error:
                if not isinstance(error, EOFError | ConnectionError):
                    is_silent = isinstance(error, BlockingIOError)
                    reason = "it is suspended or overloaded" if is_silent else error
                    logger.warning("a worker's connection was closed: %s", reason)
                if channel is not None:
                    self._selector.unregister(channel.connection)
                    channel.connection.close()
                    self._num_channels -= 1

    def _accept(self) -> None:
        accepted, _ = self._listener.accept()
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            accepted.setsockopt(socket.SOL_SOCKET, option, _PATIENCE)
        connection = Connection(accepted.detach())
        connection.send(self._facts)
        file = recv_handle(connection)
        try:
            memory = mmap.mmap(file, 0)
        finally:
            os.close(file)
        pixels = np.frombuffer(memory, np.uint8).reshape(-1, *self._image_shape)
        channel = _Channel(connection, pixels)
        self._selector.register(connection, selectors.EVENT_READ, channel)
        self._num_channels += 1

    def _run(self, parts: Sequence[_Part]) -> None:
        pixels = [part.waiting.channel.pixels[part.start : part.stop] for part in parts]
        heads: dict[bytes, Head] = {}  # the same for requests of the same label set, to run once
        asked: list[list[Head]] = []
        explained, embedded = list[int](), list[int]()
        try:
            for part in parts:
                request, shift = part.waiting.request, len(asked) - part.start
                named = zip(request.heads, part.waiting.heads, strict=True)
                own = [heads.setdefault(content, head) for content, head in named]
                rows = range(part.start, part.stop)
                asked += [[own[place] for place in request.asked[row]] for row in rows]
                explained += [row + shift for row in request.explained if row in rows]
                embedded += [row + shift for row in request.embedded if row in rows]
            images = pixels[0] if len(pixels) == 1 else np.concatenate(pixels)
            results = self._engine.run(images, asked, explained=explained, embedded=embedded)
        except Exception as error:
            self._fail(parts, error)
        else:
            self._answer(parts, results)

    def _fail(self, parts: Sequence[_Part], error: Exception) -> None:
        failure = error if isinstance(error, InferenceFailed) else InferenceFailed("the run failed")
        logger.error("a batch failed", exc_info=error)
        for part in parts:
            with self._answering:
                done, part.waiting.failed = part.waiting.failed, True
            if not done:
                self._send(part, failure)
        if isinstance(error, InferenceFailed) and not isinstance(error, OutOfMemory):
            self._engine.check()

    def _answer(self, parts: Sequence[_Part], results: Sequence[HeadResults]) -> None:
        remaining = iter(results)
        for part in parts:
            waiting, count = part.waiting, part.waiting.request.size
            with self._answering:
                waiting.results.update(
                    {row: next(remaining) for row in range(part.start, part.stop)}
                )
                is_complete = len(waiting.results) == count and not waiting.failed
            if is_complete:
                self._send(part, [waiting.results[row] for row in range(count)])

    def _send(self, part: _Part, answer: Sequence[HeadResults] | Exception) -> None:
        connection = part.waiting.channel.connection
        with suppress(OSError):
            try:
                send(connection, answer)
            except BlockingIOError:  # its process is suspended
                with socket.socket(fileno=os.dup(connection.fileno())) as opened:
                    opened.shutdown(socket.SHUT_RDWR)
