"""`Client` for threads and `AsyncClient` for asyncio: the same calls, sent one way or the other."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self, Unpack

import httpx

from ml_decoder_client import calls
from ml_decoder_client.answers import (
    Answer,
    Calibration,
    ClientError,
    Info,
    LabelCalibration,
    LabelSet,
    LabelSetSummary,
)
from ml_decoder_client.calls import Call, LabelToWrite, Photo, Question
from ml_decoder_client.connection import Attempts, Connection, Outcome, PerConnectionTransport
from ml_decoder_client.reading import ResultT

AnswerOrError = Answer | ClientError | OSError


class Client(Connection):
    """A running service, for any number of threads; close it, or use it in a `with` statement.

    Every method raises `ServiceProblem` for an error response, `UnreadableAnswer` for a response
    that is not the service's, and `ServiceUnreachable` if there is none.
    """

    _http: httpx.Client
    _slots: threading.Semaphore

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def predict(self, photo: Photo, **question: Unpack[Question]) -> Answer:
        """Labels one photo, or raises OSError if its file cannot be read."""
        return self._send(calls.predict(photo, question))

    def predict_many(
        self, photos: Iterable[Photo], *, at_once: int = 8, **question: Unpack[Question]
    ) -> Iterator[AnswerOrError]:
        """Labels photos with `at_once` requests in flight; yields answers or errors in order.

        Photos are read as they are needed.
        """
        _check_at_once(at_once)
        calls.check_photos(photos)
        with ThreadPoolExecutor(at_once) as pool:
            pending: deque[Future[AnswerOrError]] = deque()
            try:
                for photo in photos:
                    pending.append(pool.submit(self._try_predict, photo, question))
                    if len(pending) >= 2 * at_once:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()

    def info(self) -> Info:
        """Returns the model card."""
        return self._send(calls.info())

    def list_label_sets(self) -> list[LabelSetSummary]:
        """Returns every label set, without its labels."""
        return self._send(calls.list_label_sets())

    def read_label_set(self, name: str) -> LabelSet:
        """Returns one label set with its labels."""
        return self._send(calls.read_label_set(name))

    def register_label_set(
        self, name: str, labels: Iterable[LabelToWrite], *, embedding_space: str | None = None
    ) -> LabelSet:
        """Registers a label set of at least one label.

        409 if another set has this name, or if `embedding_space`, the fingerprint of the
        embeddings' space, is not the model's.
        """
        return self._send(calls.register_label_set(name, labels, embedding_space))

    def replace_label_set(
        self,
        name: str,
        labels: Iterable[LabelToWrite],
        *,
        embedding_space: str | None = None,
        calibration: Calibration | None = None,
        if_version: str | None = None,
    ) -> LabelSet:
        """Registers or replaces a label set; with `if_version`, only that version.

        `calibration` is that of a set that was read: without it, `labels calibrate` is undone.
        """
        return self._send(
            calls.replace_label_set(name, labels, embedding_space, calibration, if_version)
        )

    def change_thresholds(
        self,
        name: str,
        thresholds: Mapping[str, float | None],
        *,
        if_version: str | None = None,
    ) -> LabelSet:
        """Changes thresholds, 0..1; None takes the open head's. All else of the set stays.

        With `if_version`, only that version is changed.
        """
        return self._send(calls.change_thresholds(name, thresholds, if_version))

    def calibrate_label(
        self,
        name: str,
        label: str,
        positive: Iterable[Photo],
        negative: Iterable[Photo] = (),
        *,
        precision_target: float | None = None,
    ) -> LabelCalibration:
        """Finds the threshold of a label from photos that show it and photos that do not.

        The best has the best F1, or is the lowest that reaches `precision_target` (0..1) with 95 %
        confidence; `change_thresholds` keeps it. At most 200 photos, in one request.
        """
        return self._send(calls.calibrate_label(name, label, positive, negative, precision_target))

    def delete_label_set(self, name: str, *, if_version: str | None = None) -> None:
        """Deletes a label set; with `if_version`, only that version."""
        self._send(calls.delete_label_set(name, if_version))

    def _try_predict(self, photo: Photo, question: Question) -> AnswerOrError:
        try:
            return self.predict(photo, **question)
        except (ClientError, OSError) as error:
            return error

    def _send(self, call: Call[ResultT]) -> ResultT:
        request = self._build_request(call)
        attempts = Attempts(self._retries, request)
        while True:
            outcome: Outcome
            try:
                with self._slots:
                    outcome = self._http.send(request)
            except httpx.RequestError as error:
                outcome = error
            if (wait := attempts.find_wait(outcome)) is None:
                return self._finish(call, outcome, attempts)
            time.sleep(wait)

    def _open(self) -> None:
        # Without `trust_env`, `HTTP_PROXY` and its like have no effect, as in `AsyncClient`.
        self._http = httpx.Client(
            **self._options,
            verify=self._tls,
            limits=httpx.Limits(max_keepalive_connections=self._connections),
            trust_env=False,
        )
        # Threads wait here for a connection: httpcore 1.0.9 sometimes closes one that another
        # thread has just got from the pool (its issue 1110).
        self._slots = threading.Semaphore(self._connections)
        _clients.add(self)


class AsyncClient(Connection):
    """A running service, for the tasks of one event loop; the methods are those of `Client`."""

    _http: httpx.AsyncClient

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def predict(self, photo: Photo, **question: Unpack[Question]) -> Answer:
        # In a thread: the file's disk or network may be slow.
        return await self._send(await asyncio.to_thread(calls.predict, photo, question))

    async def predict_many(
        self, photos: Iterable[Photo], *, at_once: int = 8, **question: Unpack[Question]
    ) -> AsyncIterator[AnswerOrError]:
        _check_at_once(at_once)
        calls.check_photos(photos)
        pending: deque[asyncio.Task[AnswerOrError]] = deque()
        slots = asyncio.Semaphore(at_once)
        try:
            for photo in photos:
                pending.append(asyncio.create_task(self._try_predict(photo, question, slots)))
                if len(pending) >= 2 * at_once:
                    yield await pending.popleft()
            while pending:
                yield await pending.popleft()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def info(self) -> Info:
        return await self._send(calls.info())

    async def list_label_sets(self) -> list[LabelSetSummary]:
        return await self._send(calls.list_label_sets())

    async def read_label_set(self, name: str) -> LabelSet:
        return await self._send(calls.read_label_set(name))

    async def register_label_set(
        self, name: str, labels: Iterable[LabelToWrite], *, embedding_space: str | None = None
    ) -> LabelSet:
        return await self._send(calls.register_label_set(name, labels, embedding_space))

    async def replace_label_set(
        self,
        name: str,
        labels: Iterable[LabelToWrite],
        *,
        embedding_space: str | None = None,
        calibration: Calibration | None = None,
        if_version: str | None = None,
    ) -> LabelSet:
        return await self._send(
            calls.replace_label_set(name, labels, embedding_space, calibration, if_version)
        )

    async def change_thresholds(
        self,
        name: str,
        thresholds: Mapping[str, float | None],
        *,
        if_version: str | None = None,
    ) -> LabelSet:
        return await self._send(calls.change_thresholds(name, thresholds, if_version))

    async def calibrate_label(
        self,
        name: str,
        label: str,
        positive: Iterable[Photo],
        negative: Iterable[Photo] = (),
        *,
        precision_target: float | None = None,
    ) -> LabelCalibration:
        arguments = (name, label, positive, negative, precision_target)
        return await self._send(await asyncio.to_thread(calls.calibrate_label, *arguments))

    async def delete_label_set(self, name: str, *, if_version: str | None = None) -> None:
        await self._send(calls.delete_label_set(name, if_version))

    async def _try_predict(
        self, photo: Photo, question: Question, slots: asyncio.Semaphore
    ) -> AnswerOrError:
        try:
            async with slots:
                return await self.predict(photo, **question)
        except (ClientError, OSError) as error:
            return error

    async def _send(self, call: Call[ResultT]) -> ResultT:
        request = self._build_request(call)
        attempts = Attempts(self._retries, request)
        while True:
            outcome: Outcome
            try:
                outcome = await self._http.send(request)
            except httpx.RequestError as error:
                outcome = error
            if (wait := attempts.find_wait(outcome)) is None:
                return self._finish(call, outcome, attempts)
            await asyncio.sleep(wait)

    def _open(self) -> None:
        transport = PerConnectionTransport(self._connections, self._tls)
        self._http = httpx.AsyncClient(**self._options, transport=transport)


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _reopen_clients() -> None:
    for client in _clients:
        client._open()


# A forked process on its parent's connections would read the parent's responses.
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_reopen_clients)


def _check_at_once(at_once: int) -> None:
    if at_once < 1:
        raise ValueError(f"at_once must be at least 1; it is {at_once}")
