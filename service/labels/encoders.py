"""How labels become queries of the open head: texts -> embeddings -> queries, on the CPU.

The graphs run on one thread, next to the event loop. Texts are encoded a few at a time, so that
long and short lists take turns, and a cancelled caller stops its own work.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from tokenizers import Tokenizer

from service import errors
from service.bundle.card import OpenHead, fold_name
from service.bundle.manifest import GraphName
from service.bundle.reader import Bundle
from service.engine.heads import LABELS_PER_RUN, Embeddings, LabelVectors, QueryArray
from service.engine.sessions import KEYS, SessionConfig, open_checked
from service.labels.definition import Definition
from service.labels.label_set import LabelSet, Origin, make_open_set

TEXTS_PER_TURN = 32
"""Most texts that are encoded before the next list gets its turn."""
MAX_TOKENS = 128
"""Label texts are short, and an encoder's cost grows with the longest; CLIP reads fewer."""

ResultT = TypeVar("ResultT")


class TextEncoder:
    """Encodes texts; thread-safe. `width` is E."""

    def __init__(self, session: ort.InferenceSession, tokenizer: Tokenizer, width: int) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._width = width

    def check(self, texts: Sequence[str]) -> None:
        """Raises `InvalidLabelSet` for a text that has more tokens than the encoder reads."""
        for text, tokens in zip(texts, self._tokenizer.encode_batch(list(texts)), strict=True):
            if rest := tokens.overflowing:
                count = len(tokens.ids) + sum(part.special_tokens_mask.count(0) for part in rest)
                raise errors.InvalidLabelSet(
                    f"The text encoder reads {len(tokens.ids)} tokens (words or parts of words), "
                    f"but the text {errors.quote(text)} has {count}: shorten it"
                )

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Returns the embeddings [L, E] of L texts, each of length 1; cuts those that are too long.

        Each text is one run: int8 takes its scale from the largest value of a run, so texts in one
        run would change each other's embeddings.
        """
        rows = [np.zeros((0, self._width), np.float32)]
        for tokens in self._tokenizer.encode_batch(list(texts)):
            inputs = {
                "input_ids": np.array([tokens.ids], np.int64),
                "attention_mask": np.array([tokens.attention_mask], np.int64),
            }
            rows += self._session.run(["embeddings"], inputs)
        return np.concatenate(rows, dtype=np.float32)


class LabelEncoder:
    """Computes queries and keys from embeddings; thread-safe.

    `example` has some rows of each output: `queries` and, with a screen, the keys.
    """

    def __init__(self, session: ort.InferenceSession, example: Mapping[str, NDArray[Any]]) -> None:
        self._session = session
        self._example = example

    def encode(self, embeddings: Embeddings, *, with_keys: bool = True) -> LabelVectors:
        """Returns the queries [L, K] and keys of embeddings [L, E]."""
        vectors = self.make_blank(len(embeddings), with_keys=with_keys)
        for start in range(0, len(embeddings), LABELS_PER_RUN):
            chunk = slice(start, start + LABELS_PER_RUN)
            outputs = self._session.run(list(vectors.arrays), {"embeddings": embeddings[chunk]})
            for matrix, values in zip(vectors.arrays.values(), outputs, strict=True):
                matrix[chunk] = values
        return vectors

    def make_blank(self, count: int, *, with_keys: bool = True) -> LabelVectors:
        """Returns zeros, also for warm-ups."""
        blank = {
            name: np.zeros((count, rows.shape[1]), rows.dtype)
            for name, rows in self._example.items()
            if with_keys or name == "queries"
        }
        return LabelVectors(blank.pop("queries"), blank or None)


class LabelEncoders:
    """Text encoder and label encoder of one bundle; use it from one event loop.

    With `encodes_text`, labels may come without an embedding. `cache_size` counts candidate labels,
    `queue_size` callers that wait for the text encoder. If an encoder fails, the methods raise
    `InferenceFailed`.
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
        # Least recently used first; evicting from a plain dict would skip its deleted entries.
        self._cache: OrderedDict[str, QueryArray] = OrderedDict()
        self._cache_size = cache_size
        self._waiting = 0
        self._queue_size = queue_size
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode")

    async def embed(self, definition: Definition) -> Embeddings:
        """Returns the embeddings [L, E] of a checked set: those given, and those of the texts.

        Raises `QueueFull` if too many callers wait for the text encoder, and `InvalidLabelSet` for
        a text that is longer than it reads.
        """
        count, given = len(definition.names), set(definition.given)
        if len(given) == count:
            return definition.embeddings
        missing = [i for i in range(count) if i not in given]
        embeddings = np.empty((count, self.head.embedding_space.width), np.float32)
        if given:
            embeddings[list(definition.given)] = definition.embeddings
        texts = definition.texts(self.head.embedding_space)
        embeddings[missing] = await self.encode_texts([texts[i] for i in missing])
        return embeddings

    async def project(self, embeddings: Embeddings, *, with_keys: bool = True) -> LabelVectors:
        """Returns queries and keys of embeddings [L, E].

        Raises `InvalidLabelSet` if they are not finite.
        """
        vectors = await self._run(partial(self._labels.encode, embeddings, with_keys=with_keys))
        row = await self._run(partial(_find_overflow, vectors))
        if row is not None:
            which = f"{row + 1} of {len(vectors.queries)}"
            raise errors.InvalidLabelSet(
                f"Embedding {which} makes the model overflow: use shorter ones"
            )
        return vectors

    async def encode_candidates(self, definition: Definition) -> LabelVectors:
        """Returns the queries of a request's candidate labels, cached by their texts; no keys."""
        texts = definition.texts(self.head.embedding_space)
        queries = {text: self._cache[text] for text in texts if text in self._cache}
        missing = [text for text in dict.fromkeys(texts) if text not in queries]
        if missing:
            embeddings = await self.encode_texts(missing)
            rows = (await self.project(embeddings, with_keys=False)).queries
            queries |= {text: query.copy() for text, query in zip(missing, rows, strict=True)}
        for text in texts:
            self._cache[text] = queries[text]
            self._cache.move_to_end(text)
        while len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        return LabelVectors(np.stack([queries[text] for text in texts]))

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

    async def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Returns the embeddings [L, E], of length 1, of texts as they are; raises as `embed`.

        Raises `TextNotEncodable` if the bundle encodes none.
        """
        encoder = self._texts
        if encoder is None:
            raise errors.TextNotEncodable(texts[0])
        if self._waiting >= self._queue_size:
            raise errors.QueueFull("the queue of the text encoder is full")
        self._waiting += 1
        try:
            starts = range(0, len(texts), TEXTS_PER_TURN)
            chunks = [texts[start : start + TEXTS_PER_TURN] for start in starts]
            for chunk in chunks:  # before the first is encoded: 4 ms a text
                await self._run(partial(encoder.check, chunk))
            return np.concatenate([await self._run(partial(encoder.encode, c)) for c in chunks])
        finally:
            self._waiting -= 1

    async def _run(self, work: Callable[[], ResultT]) -> ResultT:
        if self._closed:
            raise errors.Draining("the label encoders are closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except errors.LabelSetError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise errors.InferenceFailed("encoding labels failed") from error


def _find_overflow(vectors: LabelVectors) -> int | None:
    """Returns the first row with a number that is not finite."""
    # Row by row: at once, 50,000 labels would take 75 MB.
    rows = [
        row
        for matrix in vectors.arrays.values()
        for row, values in enumerate(matrix)
        if not np.isfinite(values).all()
    ]
    return min(rows, default=None)


def open_text_encoder(bundle: Bundle, threads: int) -> TextEncoder | None:
    """Opens a bundle's text encoder; returns None if absent.

    Runs it once. Raises `BundleError` if it fails.
    """
    head, precision = bundle.card.open_head, bundle.label_precision("text_encoder")
    if head is None or precision is None:
        return None
    width = head.embedding_space.width
    session = open_checked(
        bundle,
        "text_encoder",
        SessionConfig("cpu", precision, threads),
        inputs=dict.fromkeys(("input_ids", "attention_mask"), ("int64", (None,))),
        outputs={"embeddings": ("float", (width,))},
    )
    encoder = TextEncoder(session, _open_tokenizer(bundle), width)
    with _refusing("text_encoder"):
        embeddings = encoder.encode(["a", "two words"])
    if embeddings.shape != (2, width):
        raise errors.BundleError(f"text_encoder gave embeddings of shape {list(embeddings.shape)}")
    if not np.isfinite(embeddings).all():
        raise errors.BundleError("text_encoder gave embeddings that are not finite")
    return encoder


def _open_tokenizer(bundle: Bundle) -> Tokenizer:
    content = bundle.read_tokenizer()
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the package raises `Exception` itself for a damaged file
        raise errors.BundleError("tokenizer.json is not a usable tokenizer") from error
    truncation = tokenizer.truncation or {}  # the export writes what a tower reads
    tokenizer.enable_truncation(min(MAX_TOKENS, truncation.get("max_length", MAX_TOKENS)))
    tokenizer.no_padding()
    return tokenizer


def open_label_encoder(bundle: Bundle, threads: int, *, screen: bool = True) -> LabelEncoder | None:
    """Opens a bundle's label encoder; returns None if absent.

    Runs it once. If the bundle has a screen and `screen` is true, it computes keys too. Raises
    `BundleError` if it fails.
    """
    head, precision = bundle.card.open_head, bundle.label_precision("label_encoder")
    if head is None or precision is None:
        return None
    width, has_screen = head.embedding_space.width, head.screen is not None
    session = open_checked(
        bundle,
        "label_encoder",
        SessionConfig("cpu", precision, threads),
        inputs={"embeddings": ("float", (width,))},
        outputs={"queries": ("float", (None,)), **(KEYS if has_screen else {})},
    )
    names = [output.name for output in session.get_outputs()]
    if has_screen and names == ["queries"]:
        raise errors.BundleError("label_encoder returns no keys for the screen")
    wanted = names if screen else ["queries"]
    with _refusing("label_encoder"):
        outputs = session.run(wanted, {"embeddings": np.ones((2, width), np.float32)})
    example = dict(zip(wanted, outputs, strict=True))
    for name, rows in example.items():
        if len(rows) != 2:
            raise errors.BundleError(f"label_encoder gave {name} of shape {list(rows.shape)}")
    return LabelEncoder(session, example)


@contextmanager
def _refusing(graph: GraphName) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise errors.BundleError(f"{graph} does not run: {' '.join(str(error).split())}") from error
