"""The label graphs, run on the CPU once for each label: texts -> embeddings -> queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from tokenizers import Tokenizer

from service.bundle.reader import Bundle
from service.engine.heads import LABELS_PER_RUN, Embeddings, LabelVectors
from service.engine.sessions import SessionConfig, check_tensors, list_keys, open_session
from service.errors import BundleError, InvalidLabelSet, quote

MAX_TOKENS = 128
"""Label texts are short, and an encoder's cost grows with the longest; CLIP reads fewer."""


class TextEncoder:
    """Encodes texts; thread-safe. `width` is E."""

    def __init__(self, session: ort.InferenceSession, tokenizer: Tokenizer, width: int) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._width = width

    def check(self, texts: Sequence[str]) -> None:
        """Raises `InvalidLabelSet` for a text that has more tokens than the encoder reads."""
        for text, encoding in zip(texts, self._tokenizer.encode_batch(list(texts)), strict=True):
            if rest := encoding.overflowing:
                count = len(encoding.ids) + sum(part.special_tokens_mask.count(0) for part in rest)
                raise InvalidLabelSet(
                    f"The text encoder reads {len(encoding.ids)} tokens (words or parts of words), "
                    f"but the text {quote(text)} has {count}: shorten it"
                )

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Returns the embeddings [L, E] of L texts, each of length 1; cuts those that are too long.

        Each text is one run: int8 takes its scale from the largest value of a run, so texts in one
        run would change each other's embeddings.
        """
        rows = [np.zeros((0, self._width), np.float32)]
        for encoding in self._tokenizer.encode_batch(list(texts)):
            inputs = {
                "input_ids": np.array([encoding.ids], np.int64),
                "attention_mask": np.array([encoding.attention_mask], np.int64),
            }
            rows += self._session.run(["embeddings"], inputs)
        return np.concatenate(rows, dtype=np.float32)


class LabelEncoder:
    """Computes queries and keys from embeddings; thread-safe.

    `example` has one row of each output: `queries` and, with a screen, the keys.
    """

    def __init__(self, session: ort.InferenceSession, example: Mapping[str, NDArray[Any]]) -> None:
        self._session = session
        self._example = example

    def encode(self, embeddings: Embeddings, *, with_keys: bool = True) -> LabelVectors:
        """Returns the queries [L, K] and keys of embeddings [L, E]."""
        found = self._allocate(len(embeddings), with_keys=with_keys)
        for start in range(0, len(embeddings), LABELS_PER_RUN):
            chunk = slice(start, start + LABELS_PER_RUN)
            outputs = self._session.run(list(found), {"embeddings": embeddings[chunk]})
            for matrix, values in zip(found.values(), outputs, strict=True):
                matrix[chunk] = values
        return _gather(found)

    def make_blank(self, count: int) -> LabelVectors:
        """Returns zeros, for warm-ups."""
        return _gather(self._allocate(count))

    def _allocate(self, count: int, *, with_keys: bool = True) -> dict[str, NDArray[Any]]:
        return {
            name: np.zeros((count, each.shape[1]), each.dtype)
            for name, each in self._example.items()
            if with_keys or name == "queries"
        }


def _gather(found: dict[str, NDArray[Any]]) -> LabelVectors:
    queries = found.pop("queries")
    return LabelVectors(queries, found or None)


def open_text_encoder(bundle: Bundle, threads: int) -> TextEncoder | None:
    """Opens a bundle's text encoder and runs it once, or raises `BundleError`; None if absent."""
    precision, head = bundle.label_precision("text_encoder"), bundle.card.open_head
    if precision is None or head is None:
        return None
    width = head.embedding_space.width
    session = open_session(bundle, "text_encoder", SessionConfig("cpu", precision, threads))
    ids = ("int64", (None,))
    check_tensors("text_encoder", session.get_inputs(), input_ids=ids, attention_mask=ids)
    check_tensors("text_encoder", session.get_outputs(), embeddings=("float", (width,)))
    encoder = TextEncoder(session, _open_tokenizer(bundle), width)
    try:
        found = encoder.encode(["a", "two words"])
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise BundleError(f"text_encoder does not run: {' '.join(str(error).split())}") from error
    if found.shape != (2, width):
        raise BundleError(f"text_encoder gave embeddings of shape {list(found.shape)}")
    if not np.isfinite(found).all():
        raise BundleError("text_encoder gave embeddings that are not finite")
    return encoder


def _open_tokenizer(bundle: Bundle) -> Tokenizer:
    content = bundle.read_tokenizer()
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the package raises `Exception` itself for a damaged file
        raise BundleError("tokenizer.json is not a usable tokenizer") from error
    own = tokenizer.truncation or {}  # the export writes what a tower reads
    tokenizer.enable_truncation(min(MAX_TOKENS, own.get("max_length", MAX_TOKENS)))
    tokenizer.no_padding()
    return tokenizer


def open_label_encoder(bundle: Bundle, threads: int, *, screen: bool = True) -> LabelEncoder | None:
    """Opens a bundle's label encoder and runs it once, or raises `BundleError`; None if absent.

    If the bundle has a screen and `screen` is true, it computes keys too.
    """
    precision, head = bundle.label_precision("label_encoder"), bundle.card.open_head
    if precision is None or head is None:
        return None
    width = head.embedding_space.width
    session = open_session(bundle, "label_encoder", SessionConfig("cpu", precision, threads))
    check_tensors("label_encoder", session.get_inputs(), embeddings=("float", (width,)))
    keys = {} if head.screen is None else list_keys(session.get_outputs())
    if head.screen is not None and not keys:
        raise BundleError("label_encoder returns no keys for the screen")
    check_tensors("label_encoder", session.get_outputs(), queries=("float", (None,)), **keys)
    wanted = ["queries", *keys] if screen else ["queries"]
    try:
        found = session.run(wanted, {"embeddings": np.ones((2, width), np.float32)})
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise BundleError(f"label_encoder does not run: {' '.join(str(error).split())}") from error
    for name, rows in zip(wanted, found, strict=True):
        if len(rows) != 2:
            raise BundleError(f"label_encoder gave {name} of shape {list(rows.shape)}")
    return LabelEncoder(session, dict(zip(wanted, found, strict=True)))
