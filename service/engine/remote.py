"""An engine in another process, as `Engine` is in this one: `engine_server.py` is its other side.

A run has a connection to itself: pixels go through memory that both processes map, heads and
results through a Unix socket, as pickles. So the socket must be in a folder of this user's own.
"""

import logging
import math
import mmap
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from service.bundle.card import Device, RunPrecision
from service.bundle.manifest import FileRecord
from service.bundle.reader import Bundle
from service.engine.heads import Head, HeadResults, ScreenedQueries, SomeQueries
from service.engine.shared_arrays import ArrayReader, SharedArrays
from service.errors import NotReady, ServiceBroken, StartError
from service.images.decode import PixelArray

_RETRY_SECONDS = 0.05
_STOP_SECONDS = 0.5
# One batch is decoded or answered while another is on the engine.
_PARALLEL_RUNS = 2

logger = logging.getLogger(__name__)


class EngineFacts(NamedTuple):
    """What an engine is, as its attributes of the same names; its first message."""

    device: Device
    provider: str
    precision: RunPrecision
    max_batch_size: int
    small_batch_size: int
    width: int | None
    files: dict[str, FileRecord]  # of its bundle


class Request(NamedTuple):
    """One batch; its pixels are the first `size` images of the connection's memory."""

    size: int
    heads: Sequence[bytes]  # from `pack_head`
    asked: Sequence[Sequence[int]]  # for each image, which of the heads
    explained: Collection[int]
    embedded: Collection[int]


@dataclass(frozen=True)
class _Published:
    """Stands for an array in a message."""

    link: Path


def pack_head(head: Head, arrays: SharedArrays) -> bytes:
    """Returns a head as bytes; matrices of label sets stay in their files."""

    def publish(array: NDArray[Any]) -> object:
        # As on a GPU: candidate labels, which can be written to, are used once.
        link = None if array.flags.writeable else arrays.publish(array)
        return array if link is None else _Published(link)

    packed: Any = head
    if isinstance(head, np.ndarray):
        packed = publish(head)
    elif isinstance(head, SomeQueries | ScreenedQueries):
        packed = replace(packed, queries=publish(head.queries))
    if isinstance(head, ScreenedQueries):
        packed = replace(packed, keys={name: publish(rows) for name, rows in head.keys.items()})
    return pickle.dumps(packed, pickle.HIGHEST_PROTOCOL)


def unpack_head(content: bytes, arrays: ArrayReader) -> Head:
    """Returns the head; raises OSError if a label set's process has ended meanwhile."""

    def read(array: object) -> NDArray[Any]:
        found = arrays.read(array.link) if isinstance(array, _Published) else array
        return cast("NDArray[Any]", found)

    packed: Any = pickle.loads(content)  # from a process of this service
    if isinstance(packed, SomeQueries | ScreenedQueries):
        packed = replace(packed, queries=read(packed.queries))
    if isinstance(packed, ScreenedQueries):
        packed = replace(packed, keys={name: read(rows) for name, rows in packed.keys.items()})
    return read(packed)


def send(connection: Connection, message: object) -> None:
    """Sends what `recv` returns; the connection's own `send` takes 8 us more for its pickler."""
    connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


class _Channel:
    """A connection for one run at a time."""

    def __init__(
        self, address: Path, shape: Sequence[int], is_stopping: Callable[[], bool] = bool
    ) -> None:
        """`shape` is of the pixels.

        Raises OSError or EOFError if no engine listens, or none accepts until `is_stopping`.
        """
        with socket.socket(socket.AF_UNIX) as opened:
            opened.connect(str(address))
            self.connection = Connection(opened.detach())
        while not self.connection.poll(_STOP_SECONDS):  # the engine is busy, or suspended
            if is_stopping():
                raise ConnectionAbortedError
        self.facts: EngineFacts = self.connection.recv()
        file = os.memfd_create("pixels")
        try:
            os.ftruncate(file, math.prod(shape))
            memory = mmap.mmap(file, 0)
            send_handle(self.connection, file, None)
        finally:
            os.close(file)
        self.pixels = np.frombuffer(memory, np.uint8).reshape(shape)


class RemoteEngine:
    """The engine of another process; thread-safe. Its attributes are those of `Engine`.

    `available` is false while the process is replaced; runs then raise `NotReady`. Opening waits
    for the engine, and raises `StartError` once `is_stopping` returns true. If the replacement has
    another bundle, this process ends, to be replaced too.
    """

    workers = _PARALLEL_RUNS

    def __init__(
        self, address: Path, bundle: Bundle, arrays: SharedArrays, is_stopping: Callable[[], bool]
    ) -> None:
        self._address, self._arrays, self._is_stopping = address, arrays, is_stopping
        self._files = bundle.manifest.files
        self._image_shape = bundle.card.input.shape
        self._idle: list[_Channel] = []
        self._link = self._connect()
        facts = self._link.facts
        if facts.files != self._files:
            raise StartError("the bundle was changed while the service started: start it again")
        self.max_batch_size, self.small_batch_size = facts.max_batch_size, facts.small_batch_size
        self.width = facts.width
        self._adopt(facts)
        threading.Thread(target=self._watch, name="engine-link", daemon=True).start()

    def _connect(self) -> _Channel:
        while not self._is_stopping():
            with suppress(OSError, EOFError):
                return _Channel(self._address, (1, *self._image_shape), self._is_stopping)
            time.sleep(_RETRY_SECONDS)
        raise StartError("the service was stopped before its engine was ready")

    def _adopt(self, facts: EngineFacts) -> None:
        self.device, self.provider, self.precision = facts.device, facts.provider, facts.precision
        self.available = True

    def _watch(self) -> None:
        """Notices the engine's end, and its replacement."""
        while not self._is_stopping():
            with suppress(OSError, EOFError):
                self._link.connection.recv()  # no message comes
            self.available = False
            self._idle.clear()
            with suppress(StartError):
                self._link = self._connect()
                facts = self._link.facts
                if facts.files != self._files:
                    logger.critical("the engine has another bundle now; this process ends")
                    os._exit(ServiceBroken.exit_code)
                self._adopt(facts)

    def run(
        self,
        images: PixelArray,
        asked: Sequence[Sequence[Head]],
        *,
        alone: bool = False,  # noqa: ARG002 - the engine knows what other processes run
        explained: Collection[int] = (),
        embedded: Collection[int] = (),
    ) -> list[HeadResults]:
        """Runs one batch, perhaps together with those of other processes; see `Engine.run`.

        Raises `NotReady` too, if the engine's process ends.
        """
        heads = {id(head): head for wanted in asked for head in wanted}
        places = {key: place for place, key in enumerate(heads)}
        request = Request(
            len(images),
            [pack_head(head, self._arrays) for head in heads.values()],
            [[places[id(head)] for head in wanted] for wanted in asked],
            explained,
            embedded,
        )
        try:
            channel = self._take()
            channel.pixels[: len(images)] = images
            send(channel.connection, request)
            found: list[HeadResults] | Exception = channel.connection.recv()
        except (OSError, EOFError) as error:
            raise NotReady("the engine process ended") from error
        self._idle.append(channel)
        if isinstance(found, Exception):
            raise found
        return found

    def _take(self) -> _Channel:
        with suppress(IndexError):
            return self._idle.pop()
        return _Channel(self._address, (self.max_batch_size, *self._image_shape))

    def check(self) -> None:
        """Does nothing: the engine's own process checks it after a failure, and ends."""
