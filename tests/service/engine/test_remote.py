"""An engine in another process: the same results, merged batches, and the end of either side."""

import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.bundle.reader import Bundle
from service.engine import engine_server
from service.engine.engine import Engine, open_engine
from service.engine.engine_server import EngineServer
from service.engine.heads import Head, HeadResults, NoHead, ScreenedQueries, SomeQueries
from service.engine.remote import RemoteEngine, Request, _Channel, pack_head, send
from service.engine.shared_arrays import SharedArrays
from service.errors import InferenceFailed, NotReady, OutOfMemory, StartError
from tests.support.engines import pretend_gpu
from tests.support.threads import wait_until
from tests.support.tiny_bundle import SIDE, random_images, random_queries, write_screened_bundle


class Blocking:
    """Stands before an engine: notes the size of each run, and holds runs until `released`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.sizes: list[int] = []
        self.released = threading.Event()
        self.released.set()
        self.error: Exception | None = None
        self.checks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, images: Any, *args: Any, **options: Any) -> list[HeadResults]:
        self.sizes.append(len(images))
        assert self.released.wait(30)
        if self.error is not None:
            raise self.error
        return self._engine.run(images, *args, **options)

    def check(self) -> None:
        self.checks += 1


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_screened_bundle(tmp_path_factory.mktemp("screened"))


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Engine:
    with pretend_gpu():
        return open_engine(bundle, device="cuda", precision="fp32", max_batch_size=4)


@contextmanager
def serve(engine: Any, bundle: Bundle, folder: Path) -> Iterator[EngineServer]:
    supervisor, theirs = Pipe()
    server = EngineServer(engine, bundle, folder / "engine", max_run_seconds=60)
    serving = threading.Thread(target=server.serve, args=[theirs], daemon=True)
    serving.start()
    try:
        yield server
    finally:
        supervisor.close()


def connect(
    bundle: Bundle, folder: Path, owner: int = 1, stops: Callable[[], bool] = bool
) -> RemoteEngine:
    return RemoteEngine(folder / "engine", bundle, SharedArrays(folder, owner), stops)


def count_waiting(server: EngineServer) -> int:
    """Returns how many requests are in the sockets, while a run blocks the server."""
    with selectors.DefaultSelector() as selector:
        for key in server._selector.get_map().values():
            selector.register(key.fileobj, selectors.EVENT_READ)
        return len(selector.select(0))


def make_heads() -> list[Head]:
    queries = random_queries(0, 40)
    queries.flags.writeable = False
    candidates = random_queries(1, 3)
    ranks = [np.full(40, value, np.float32) for value in (1, -3)]
    screened = ScreenedQueries(queries, {"projected": queries}, *ranks, 5)
    return [None, queries, candidates, SomeQueries(queries, np.array([3, 1])), screened, NoHead(2)]


def assert_same(found: Sequence[HeadResults], wanted: Sequence[HeadResults]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        for some, others in (
            (ours.logits, theirs.logits),
            (ours.memories, theirs.memories),
            ([ours.embedding], [theirs.embedding]),
            ([ours.tokens], [theirs.tokens]),
        ):
            for one, other in zip(some, others, strict=True):
                pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
                for mine, yours in pairs:
                    assert (mine is None) == (yours is None)
                    if mine is not None:
                        np.testing.assert_allclose(mine, yours, atol=1e-5)


def test_results_of_all_heads_are_those_of_the_engine(
    engine: Engine, bundle: Bundle, tmp_path: Path
) -> None:
    heads, images = make_heads(), random_images(0, 4)
    asked = [heads[1:], heads[:1], [], heads[::-1]]  # the trained head has no maps
    with serve(engine, bundle, tmp_path):
        remote = connect(bundle, tmp_path)
        for name in ("device", "provider", "precision", "max_batch_size", "width", "available"):
            assert getattr(remote, name) == getattr(engine, name)
        for rows in ([0], [2], [3, 1], [0, 1, 2, 3]):
            some = [asked[row] for row in rows]
            explained = [place for place, row in enumerate(rows) if row in (0, 2)]
            options = {"explained": explained, "embedded": [0, 1][: len(rows)]}
            assert_same(
                remote.run(images[rows], some, **options),
                engine.run(images[rows], some, **options),
            )


def test_waiting_batches_are_merged_and_split(
    engine: Engine, bundle: Bundle, tmp_path: Path
) -> None:
    heads, images = make_heads(), random_images(1, 9)
    blocking = Blocking(engine)
    blocking.released.clear()

    def run(engine: Engine | RemoteEngine, start: int, stop: int) -> list[HeadResults]:
        rows = range(start, stop)
        asked = [[heads[row % 6], heads[1]] for row in rows]
        explained = [place for place, row in enumerate(rows) if row % 6]
        return engine.run(images[start:stop], asked, explained=explained, embedded=[len(rows) - 1])

    with serve(blocking, bundle, tmp_path) as server, ThreadPoolExecutor(4) as threads:
        remotes = [connect(bundle, tmp_path, owner) for owner in (1, 2)]
        for each in remotes:  # a connection is made between runs
            each._idle += [_Channel(tmp_path / "engine", (4, SIDE, SIDE, 3)) for _ in range(2)]

        running = [threads.submit(run, remotes[0], 0, 1)]
        wait_until(lambda: blocking.sizes == [1])
        parts = ((1, 4), (4, 7), (7, 9))
        running += [threads.submit(run, remotes[rows[0] % 2], *rows) for rows in parts]
        wait_until(lambda: count_waiting(server) == len(parts))
        blocking.released.set()
        found = [each.result() for each in running]
    assert blocking.sizes == [1, 4, 4]
    for rows, results in zip(((0, 1), *parts), found, strict=True):
        assert_same(results, run(engine, *rows))


@pytest.mark.parametrize(
    "error", [OutOfMemory("no memory"), InferenceFailed("no luck"), ZeroDivisionError("secret")]
)
def test_failure_reaches_the_caller_and_the_next_run_works(
    engine: Engine, bundle: Bundle, tmp_path: Path, error: Exception
) -> None:
    failing = Blocking(engine)
    with serve(failing, bundle, tmp_path):
        remote = connect(bundle, tmp_path)
        failing.error = error
        with pytest.raises(InferenceFailed) as caught:
            remote.run(random_images(0, 1), [[None]])
        assert type(caught.value) is (
            OutOfMemory if isinstance(error, OutOfMemory) else InferenceFailed
        )
        assert "secret" not in str(caught.value)
        failing.error = None
        assert len(remote.run(random_images(0, 2), [[None]] * 2)) == 2
        assert failing.checks == (type(error) is InferenceFailed)


def test_engine_that_is_replaced_is_used_again(
    engine: Engine, bundle: Bundle, tmp_path: Path
) -> None:
    with serve(engine, bundle, tmp_path) as first:
        remote = connect(bundle, tmp_path)
        remote.run(random_images(0, 1), [[None]])
        first._listener.close()  # before the channels: a closed one is opened again at once
        for channel in [key.data for key in first._selector.get_map().values() if key.data]:
            channel.connection.close()
    wait_until(lambda: not remote.available)
    with pytest.raises(NotReady):
        remote.run(random_images(0, 1), [[None]])
    with serve(engine, bundle, tmp_path):
        wait_until(lambda: remote.available)
        assert len(remote.run(random_images(0, 1), [[None]])) == 1


def test_opening_waits_for_the_engine_unless_the_service_stops(
    engine: Engine, bundle: Bundle, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(1) as thread:
        opening = thread.submit(connect, bundle, tmp_path)
        with serve(engine, bundle, tmp_path):
            assert opening.result().available
    with pytest.raises(StartError, match="stopped before its engine was ready"):
        connect(bundle, tmp_path / "other", stops=lambda: True)


def test_suspended_engine_does_not_stop_the_end_of_the_service(
    bundle: Bundle, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine"))
        listener.listen()
        with pytest.raises(StartError, match="stopped before its engine was ready"):
            connect(bundle, tmp_path, stops=iter([False, True, True]).__next__)


def test_suspended_worker_does_not_stop_others(
    engine: Engine, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_server, "_PATIENCE", struct.pack("ll", 0, 100_000))
    with serve(engine, bundle, tmp_path), socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(tmp_path / "engine"))
        remote, other = (connect(bundle, tmp_path, owner) for owner in (1, 2))
        # One sends a part of a request, the other does not read a large answer.
        stopped = [other._take() for _ in range(2)]
        os.write(stopped[0].connection.fileno(), b"\0\0")
        many = Request(4, [pack_head(NoHead(10**5), other._arrays)], [[0]] * 4, (), ())
        send(stopped[1].connection, many)
        assert len(remote.run(random_images(0, 2), [[None]] * 2)) == 2
        for each in stopped:
            with pytest.raises((EOFError, OSError)):
                each.connection.recv()


def test_lost_label_set_of_one_worker_does_not_fail_others(
    engine: Engine, bundle: Bundle, tmp_path: Path
) -> None:
    blocking = Blocking(engine)
    blocking.released.clear()
    with serve(blocking, bundle, tmp_path) as server, ThreadPoolExecutor(3) as threads:
        first, second = (connect(bundle, tmp_path, owner) for owner in (1, 2))
        for each in (first, second):
            each._idle.append(_Channel(tmp_path / "engine", (4, SIDE, SIDE, 3)))
        queries = random_queries(0, 40)
        queries.flags.writeable = False
        running = [threads.submit(connect(bundle, tmp_path, 3).run, random_images(0, 1), [[None]])]
        wait_until(lambda: blocking.sizes == [1])
        running += [
            threads.submit(first.run, random_images(1, 1), [[queries]]),
            threads.submit(second.run, random_images(2, 1), [[None]]),
        ]
        wait_until(lambda: count_waiting(server) == 2)
        SharedArrays(tmp_path, 1)  # it was killed, and replaced
        blocking.released.set()
        assert len(running[0].result()) == len(running[2].result()) == 1
        with pytest.raises(NotReady):
            running[1].result()


def test_engine_of_another_bundle_is_refused(
    engine: Engine, bundle: Bundle, tiny_bundle: Bundle, tmp_path: Path
) -> None:
    with serve(engine, tiny_bundle, tmp_path), pytest.raises(StartError, match="was changed"):
        connect(bundle, tmp_path)


def test_matrices_of_label_sets_are_not_sent(tmp_path: Path) -> None:
    queries, candidates = random_queries(0, 500), random_queries(1, 500)
    queries.flags.writeable = False
    arrays = SharedArrays(tmp_path, 1)
    assert len(pack_head(queries, arrays)) < 500
    assert len(pack_head(candidates, arrays)) > candidates.nbytes


def test_socket_that_cannot_be_opened_is_one_line(
    engine: Engine, bundle: Bundle, tmp_path: Path
) -> None:
    with pytest.raises(StartError, match="the engine cannot listen at"):
        EngineServer(engine, bundle, tmp_path / "missing" / "engine", 60)
