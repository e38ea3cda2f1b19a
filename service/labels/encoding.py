"""LabelEncoders of labels for the open head, on one thread beside the event loop.

Texts are encoded a few at a time, so that long and short lists take turns, and a cancelled caller
stops its own work.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np

from service.bundle.card import OpenHead, fold_name
from service.bundle.reader import Bundle
from service.engine.encoders import (
    LabelEncoder,
    TextEncoder,
    open_label_encoder,
    open_text_encoder,
)
from service.engine.heads import Embeddings, LabelVectors, QueryArray
from service.errors import Draining, InferenceFailed, InvalidLabelSet, LabelSetError, QueueFull
from service.labels.definition import Definition, check_fit
from service.labels.label_set import LabelSet, Origin, make_open_set

TEXTS_PER_TURN = 32
"""Most texts that are encoded before the next list gets its turn."""

ResultT = TypeVar("ResultT")


class LabelEncoders:
    """Text encoder and label encoder of one bundle; use it from one event loop.

    With `encodes_text`, labels may come without an embedding. If an encoder fails, the methods
    raise `InferenceFailed`. `make_blank` is that of the label encoder.
    """

    def __init__(  # noqa: PLR0913 - names and sizes are keywords
        self,
        head: OpenHead,
        labels: LabelEncoder,
        texts: TextEncoder | None,
        *,
        trained_names: Collection[str] = (),
        cache_size: int,
        queue_size: int,
    ) -> None:
        self.head = head
        self._trained_names = frozenset(map(fold_name, trained_names))
        self.make_blank = labels.make_blank
        self.encodes_text = texts is not None
        self._labels = labels
        self._texts = texts
        self._cache: OrderedDict[str, QueryArray] = OrderedDict()  # least recently used first
        self._cache_size = cache_size
        self._waiting = 0
        self._queue_size = queue_size
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode")

    def check(self, definition: Definition) -> Definition:
        """Returns a set as it fits the bundle; raises the `LabelSetError` of `check_fit`."""
        return check_fit(definition, self.head.embedding_space, encodes_text=self.encodes_text)

    async def embed(self, definition: Definition) -> Embeddings:
        """Returns the embeddings [L, E] of a checked set: those given, and those of the texts.

        Raises `QueueFull` if too many callers wait for the text encoder, and `InvalidLabelSet` for
        a text that is longer than it reads.
        """
        if definition.given == tuple(range(len(definition.names))):
            return definition.embeddings
        given = set(definition.given)
        missing = [i for i in range(len(definition.names)) if i not in given]
        embeddings = np.empty((len(definition.names), self.head.embedding_space.width), np.float32)
        if given:
            embeddings[list(definition.given)] = definition.embeddings
        texts = definition.texts(self.head.embedding_space)
        embeddings[missing] = await self._encode_texts([texts[i] for i in missing])
        return embeddings

    async def project(self, embeddings: Embeddings, *, with_keys: bool = True) -> LabelVectors:
        """Returns queries and keys of embeddings [L, E]; `InvalidLabelSet` if not finite."""
        vectors = await self._run(partial(self._labels.encode, embeddings, with_keys=with_keys))
        row = await self._run(partial(_find_overflow, vectors))
        if row is not None:
            place = f"{row + 1} of {len(vectors.queries)}"
            raise InvalidLabelSet(f"Embedding {place} makes the model overflow: use shorter ones")
        return vectors

    async def encode_candidates(self, definition: Definition) -> LabelVectors:
        """Returns the queries of a request's candidate labels, cached by their texts; no keys."""
        texts = definition.texts(self.head.embedding_space)
        found = {text: self._cache[text] for text in texts if text in self._cache}
        missing = [text for text in dict.fromkeys(texts) if text not in found]
        if missing:
            embeddings = await self._encode_texts(missing)
            queries = (await self.project(embeddings, with_keys=False)).queries
            found |= {text: query.copy() for text, query in zip(missing, queries, strict=True)}
        for text in texts:
            self._cache[text] = found[text]
            self._cache.move_to_end(text)
        while len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        return LabelVectors(np.stack([found[text] for text in texts]))

    def make_set(
        self, definition: Definition, vectors: LabelVectors, version: str, origin: Origin
    ) -> LabelSet:
        """Returns the snapshot of a set, with the open head's threshold and calibration."""
        return make_open_set(
            definition, vectors, self.head, self._trained_names, version=version, origin=origin
        )

    def close(self) -> None:
        """Stops the thread after its queued work; later calls raise `Draining`."""
        self._closed = True
        self._thread.shutdown(wait=False)

    async def _encode_texts(self, texts: Sequence[str]) -> Embeddings:
        empty = np.zeros((0, self.head.embedding_space.width), np.float32)
        if not texts:
            return empty
        if self._waiting >= self._queue_size:
            raise QueueFull("the queue of the text encoder is full")
        encoder = self._texts
        assert encoder is not None  # else `check` refuses the set
        self._waiting += 1
        try:
            starts = range(0, len(texts), TEXTS_PER_TURN)
            chunks = [texts[start : start + TEXTS_PER_TURN] for start in starts]
            for chunk in chunks:  # before the first is encoded: 4 ms a text
                await self._run(partial(encoder.check, chunk))
            runs = [await self._run(partial(encoder.encode, chunk)) for chunk in chunks]
        finally:
            self._waiting -= 1
        return np.concatenate([empty, *runs])

    async def _run(self, work: Callable[[], ResultT]) -> ResultT:
        if self._closed:
            raise Draining("the label encoders are closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except LabelSetError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise InferenceFailed("encoding labels failed") from error


def _find_overflow(vectors: LabelVectors) -> int | None:
    """Returns the first row with a number that is not finite."""
    # Row by row: at once, 50,000 labels would take 75 MB.
    rows = [
        next((row for row, values in enumerate(matrix) if not np.isfinite(values).all()), None)
        for matrix in (vectors.queries, *(vectors.keys or {}).values())
    ]
    return min((row for row in rows if row is not None), default=None)


def open_label_encoders(
    bundle: Bundle, *, threads: int, cache_size: int, queue_size: int, screen: bool = True
) -> LabelEncoders | None:
    """Opens the encoders of a bundle, or raises `BundleError`; None without an open head.

    `cache_size` counts candidate labels, `queue_size` callers that wait for the text encoder.
    Without `screen`, sets have no keys.
    """
    labels = open_label_encoder(bundle, threads, screen=screen)
    if labels is None or bundle.card.open_head is None:
        return None
    texts = open_text_encoder(bundle, threads)
    return LabelEncoders(
        bundle.card.open_head,
        labels,
        texts,
        trained_names=[label.name for label in bundle.labels],
        cache_size=cache_size,
        queue_size=queue_size,
    )
