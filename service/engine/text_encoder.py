"""Label texts become embeddings: the tokenizer and the text encoder of a bundle.

In: texts. Out: embeddings float32 [L, E] of length 1. It runs on the CPU, once for each text of
a registration. Next: `queries.py`, which turns embeddings into label queries.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort
from tokenizers import Encoding, Tokenizer

from service.bundle.reader import Bundle
from service.engine.heads import Embeddings
from service.engine.sessions import Place, check_tensors, open_session
from service.errors import BundleError

MAX_TOKENS = 128
"""Longer texts are cut: label texts are short, and the encoder's cost grows with the longest."""

TEXTS_PER_TURN = 32
"""Most texts in one turn of a list, so that a long one cannot keep the others waiting."""


class TextEncoder:
    """Encodes texts; safe to use from several threads."""

    def __init__(self, session: ort.InferenceSession, tokenizer: Tokenizer, width: int) -> None:
        """Takes what `open_text_encoder` has opened; `width` is E."""
        self._session = session
        self._tokenizer = tokenizer
        self._width = width

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Returns the embeddings [L, E] of L texts.

        Each text has a run of its own: int8 rounds by the largest value of a run, so that the
        embedding of one text would depend on the others.
        """
        rows = [
            self._encode_one(encoding) for encoding in self._tokenizer.encode_batch(list(texts))
        ]
        return np.concatenate([np.zeros((0, self._width), np.float32), *rows])

    def _encode_one(self, encoding: Encoding) -> Embeddings:
        inputs = {
            "input_ids": np.array([encoding.ids], np.int64),
            "attention_mask": np.array([encoding.attention_mask], np.int64),
        }
        (found,) = self._session.run(["embeddings"], inputs)
        return np.asarray(found, np.float32)


def open_text_encoder(bundle: Bundle, threads: int) -> TextEncoder | None:
    """Opens a bundle's text encoder and tries it; None where the bundle has none.

    Raises:
        BundleError: the graph or the tokenizer is damaged, or they do not fit each other.
    """
    precision = bundle.label_precision("text_encoder")
    if precision is None or bundle.card.open_head is None:
        return None
    width = bundle.card.open_head.embedding_space.width
    session = open_session(bundle, "text_encoder", Place("cpu", precision, threads))
    ids = ("int64", (None,))
    check_tensors("text_encoder", session.get_inputs(), input_ids=ids, attention_mask=ids)
    check_tensors("text_encoder", session.get_outputs(), embeddings=("float", (width,)))
    encoder = TextEncoder(session, _open_tokenizer(bundle), width)
    try:
        found = encoder.encode(["a", "two words"])
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise BundleError(f"text_encoder does not run: {' '.join(str(error).split())}") from error
    if found.shape != (2, width) or not np.isfinite(found).all():
        raise BundleError(f"text_encoder gave embeddings of shape {list(found.shape)}")
    return encoder


def _open_tokenizer(bundle: Bundle) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_buffer(bundle.read_tokenizer())
    except BundleError:
        raise
    except Exception as error:  # what the package raises on a damaged file is `Exception`
        raise BundleError("tokenizer.json is not a usable tokenizer") from error
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    return tokenizer
