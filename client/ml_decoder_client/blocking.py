"""The client for ordinary code; `awaiting.py` is the same for asyncio.

In: calls. Out: their results. Connections are kept open and shared by threads; a call that the
service refuses for now is sent again when it says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar, Unpack

import httpx
from httpx_retries import RetryTransport

from ml_decoder_client import calls
from ml_decoder_client.answers import Answer, Info, LabelSet, LabelSetSummary
from ml_decoder_client.calls import Call, LabelToWrite, Photo, Question
from ml_decoder_client.connection import (
    WholeTransport,
    check_timeout,
    explain_failure,
    make_headers,
    make_timeout,
    read_url,
)
from ml_decoder_client.errors import ClientError
from ml_decoder_client.tries import make_tries

ResultT = TypeVar("ResultT")


class Client:
    """A running service; close it, or use it in a `with` statement.

    Every method raises `ServiceProblem` for an answer that is an error, `UnreadableAnswer` for one
    that is not the service's, and `ServiceUnreachable` where none came.

    Args:
        url: address of the service.
        api_key: sent with every request; None sends none.
        timeout_seconds: most seconds without a byte, in each of a call's tries; a label set that
            is written has 20 ms a label more.
        retries: how often a call is sent again that was refused with 429, 502 or 503, or whose
            connection broke; `Retry-After` says when, up to five minutes. A write with
            `if_version` is not where the service may have done it: after 502, or a lost answer.
        connections: most connections at a time.

    Raises:
        ValueError: an argument is out of range, or no address or key.
    """

    def __init__(
        self,
        url: str = "http://localhost:8000",
        *,
        api_key: str | None = None,
        timeout_seconds: float = 60.0,
        retries: int = 5,
        connections: int = 16,
    ) -> None:
        self._timeout_seconds = check_timeout(timeout_seconds)
        self._tries = make_tries(retries)
        self._http = httpx.Client(
            base_url=read_url(url),
            headers=make_headers(api_key),
            transport=RetryTransport(WholeTransport(connections)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def predict(self, photo: Photo, **question: Unpack[Question]) -> Answer:
        """Labels one photo.

        Args:
            photo: the content of an image file, or its path.
            question: see `Question`.

        Raises:
            OSError: the file cannot be read.
        """
        return self._send(calls.call_predict(photo, question))

    def predict_many(
        self, photos: Iterable[Photo], *, at_once: int = 8, **question: Unpack[Question]
    ) -> Iterator[Answer | ClientError | OSError]:
        """Labels many photos, several at a time; the service batches them.

        Args:
            photos: any number; read as they are needed.
            at_once: most requests under way.
            question: see `Question`.

        Yields:
            For each photo, in order, its answer, or the error that it met.

        Raises:
            TypeError: `photos` is one photo.
            ValueError: `at_once` is less than 1.
        """
        calls.check_many(photos, at_once)
        with ThreadPoolExecutor(at_once) as pool:
            waiting: deque[Future[Answer | ClientError | OSError]] = deque()
            try:
                for photo in photos:
                    waiting.append(pool.submit(self._try_predict, photo, question))
                    if len(waiting) >= 2 * at_once:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def info(self) -> Info:
        """Returns the model card."""
        return self._send(calls.call_info())

    def list_label_sets(self) -> list[LabelSetSummary]:
        """Returns every label set, without its labels."""
        return self._send(calls.call_list())

    def read_label_set(self, name: str) -> LabelSet:
        """Returns one label set with its labels."""
        return self._send(calls.call_read(name))

    def register_label_set(
        self, name: str, labels: Iterable[LabelToWrite], *, embedding_space: str | None = None
    ) -> LabelSet:
        """Registers a label set; the same set once more is no error, another one is.

        Args:
            name: of the set.
            labels: at least one: a name, a `NewLabel`, what `read_label_set` told, or a mapping.
            embedding_space: fingerprint of the space of embeddings that the labels bring; the
                service refuses another than its model's.
        """
        return self._send(calls.call_register(name, labels, embedding_space))

    def replace_label_set(
        self,
        name: str,
        labels: Iterable[LabelToWrite],
        *,
        embedding_space: str | None = None,
        if_version: str | None = None,
    ) -> LabelSet:
        """Registers a label set or replaces it; with `if_version`, only that version."""
        call = calls.call_replace(name, labels, embedding_space, if_version)
        return self._send(call)

    def delete_label_set(self, name: str, *, if_version: str | None = None) -> None:
        """Deletes a label set; with `if_version`, only that version."""
        self._send(calls.call_delete(name, if_version))

    def _try_predict(self, photo: Photo, question: Question) -> Answer | ClientError | OSError:
        try:
            return self.predict(photo, **question)
        except (ClientError, OSError) as error:
            return error

    def _send(self, call: Call[ResultT]) -> ResultT:
        timeout = make_timeout(self._timeout_seconds, call.more_seconds)
        extensions = self._tries.make_extensions(conditional=call.is_conditional)
        try:
            response = self._http.request(
                call.method, call.path, timeout=timeout, extensions=extensions, **call.options
            )
        except httpx.RequestError as error:
            raise explain_failure(error, self._http.base_url, timeout) from error
        return call.finish(response)
