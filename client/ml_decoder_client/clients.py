"""`Client` for threads and `AsyncClient` for asyncio: the same calls, sent one way or the other."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

import httpx2

from ml_decoder_client import calls
from ml_decoder_client.answers import Answer, ClientError
from ml_decoder_client.calls import Call, Photo, Question
from ml_decoder_client.connection import ALONE, Attempts, Connection, Turns
from ml_decoder_client.reading import ResultT

AnswerOrError = Answer | ClientError | OSError
MethodT = TypeVar("MethodT", bound=Callable[..., object])
P = ParamSpec("P")


def _blocking(
    call: Callable[P, Iterable[Call[ResultT]]],
) -> Callable[Concatenate[Client, P], ResultT]:
    """Returns the method of `Client` that sends a call, or several, and returns the last result."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        for part in call(*args, **kwargs):
            result = self._send(part)
        return result

    return _present(method, call)


def _awaited(
    call: Callable[P, Iterable[Call[ResultT]]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, ResultT]]:
    """Returns the method of `AsyncClient` that sends a call, or each of several after another."""

    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        # In threads: the disk or the network of a file may be slow.
        parts = await asyncio.to_thread(call, *args, **kwargs)
        if isinstance(parts, Call):
            return await self._send(parts)
        several = iter(parts)
        while part := await asyncio.to_thread(next, several, None):
            result = await self._send(part)
        return result

    return _present(method, call)


def _present(method: MethodT, call: Callable[..., object]) -> MethodT:
    """Gives a method the name, the docstring and the parameters of a call."""
    update_wrapper(method, call)
    receiver = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [receiver, *signature(call).parameters.values()]
    method.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return method


class Client(Connection):
    """A running service, for any number of threads; close it, or use it in a `with` statement.

    Every method raises `ServiceProblem` for an error response, `UnreadableAnswer` for a response
    that is not the service's, and `ServiceUnreachable` if there is none.
    """

    _http: httpx2.Client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    predict = _blocking(calls.predict)
    info = _blocking(calls.info)
    list_label_sets = _blocking(calls.list_label_sets)
    read_label_set = _blocking(calls.read_label_set)
    register_label_set = _blocking(calls.register_label_set)
    replace_label_set = _blocking(calls.replace_label_set)
    change_thresholds = _blocking(calls.change_thresholds)
    calibrate_label = _blocking(calls.calibrate_label)
    learn_label = _blocking(calls.learn_label)
    forget_examples = _blocking(calls.forget_examples)
    embed = _blocking(calls.embed)
    delete_label_set = _blocking(calls.delete_label_set)

    def predict_many(
        self, photos: Iterable[Photo], *, at_once: int = 8, **question: Unpack[Question]
    ) -> Iterator[AnswerOrError]:
        """Labels photos with `at_once` requests in flight; yields answers or errors in order.

        Photos are read as they are needed. While one is retried, the others wait. Raises the first
        error that is not of one photo: no connection, or a missing or invalid key.
        """
        calls.check_photos(photos, at_once)
        turns = Turns(threading.Lock())
        with ThreadPoolExecutor(at_once) as pool:
            pending: deque[Future[AnswerOrError]] = deque()
            try:
                for photo in photos:
                    pending.append(pool.submit(self._try_predict, photo, question, turns))
                    if len(pending) >= 2 * at_once:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                turns.fatal = turns.fatal or ClientError("stopped")  # ends the retries
                for future in pending:
                    future.cancel()

    def _try_predict(self, photo: Photo, question: Question, turns: Turns) -> AnswerOrError:
        try:
            return self._send(calls.predict(photo, **question), turns)
        except (ClientError, OSError) as error:
            return turns.check(error)

    def _send(self, call: Call[ResultT], turns: Turns = ALONE) -> ResultT:
        attempts = Attempts(self._retries, self._build_request(call))
        self._attempt(attempts)
        with turns.lock:
            while attempts.next_at is not None and turns.fatal is None:
                time.sleep(max(0.0, attempts.next_at - time.monotonic()))
                self._attempt(attempts)
        return self._finish(call, attempts)

    def _attempt(self, attempts: Attempts) -> None:
        try:
            attempts.record(self._http.send(attempts.request))
        except httpx2.RequestError as error:
            attempts.record(error)

    def _open(self) -> None:
        self._http = httpx2.Client(**self._options)
        _clients.add(self)


class AsyncClient(Connection):
    """A running service, for the tasks of one event loop; the methods are those of `Client`."""

    _http: httpx2.AsyncClient

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    predict = _awaited(calls.predict)
    info = _awaited(calls.info)
    list_label_sets = _awaited(calls.list_label_sets)
    read_label_set = _awaited(calls.read_label_set)
    register_label_set = _awaited(calls.register_label_set)
    replace_label_set = _awaited(calls.replace_label_set)
    change_thresholds = _awaited(calls.change_thresholds)
    calibrate_label = _awaited(calls.calibrate_label)
    learn_label = _awaited(calls.learn_label)
    forget_examples = _awaited(calls.forget_examples)
    embed = _awaited(calls.embed)
    delete_label_set = _awaited(calls.delete_label_set)

    async def predict_many(
        self, photos: Iterable[Photo], *, at_once: int = 8, **question: Unpack[Question]
    ) -> AsyncIterator[AnswerOrError]:
        calls.check_photos(photos, at_once)
        pending: deque[asyncio.Task[AnswerOrError]] = deque()
        slots, turns = asyncio.Semaphore(at_once), Turns(asyncio.Lock())
        try:
            for photo in photos:
                predicted = self._try_predict(photo, question, slots, turns)
                pending.append(asyncio.create_task(predicted))
                if len(pending) >= 2 * at_once:
                    yield await pending.popleft()
            while pending:
                yield await pending.popleft()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _try_predict(
        self, photo: Photo, question: Question, slots: asyncio.Semaphore, turns: Turns
    ) -> AnswerOrError:
        try:
            async with slots:
                call = await asyncio.to_thread(calls.predict, photo, **question)
                return await self._send(call, turns)
        except (ClientError, OSError) as error:
            return turns.check(error)

    async def _send(self, call: Call[ResultT], turns: Turns = ALONE) -> ResultT:
        attempts = Attempts(self._retries, self._build_request(call))
        await self._attempt(attempts)
        async with turns.lock:
            while attempts.next_at is not None and turns.fatal is None:
                await asyncio.sleep(max(0.0, attempts.next_at - time.monotonic()))
                await self._attempt(attempts)
        return self._finish(call, attempts)

    async def _attempt(self, attempts: Attempts) -> None:
        try:
            attempts.record(await self._http.send(attempts.request))
        except httpx2.RequestError as error:
            attempts.record(error)

    def _open(self) -> None:
        self._http = httpx2.AsyncClient(**self._options)


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _reopen_clients() -> None:
    for client in _clients:
        client._open()


# A forked process on its parent's connections would read the parent's responses.
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_reopen_clients)
