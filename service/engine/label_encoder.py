"""Embeddings become label queries: all that the open head computes from a label alone.

In: embeddings float32 [L, E]. Out: queries float32 [L, K]; K is the graph's own matter. It runs
once for each registration, on the CPU. Next: `label_set.py`, which keeps the queries.
"""

from __future__ import annotations

import numpy as np
import onnxruntime as ort

from service.bundle.reader import Bundle
from service.engine.heads import Embeddings, QueryArray
from service.engine.sessions import Place, check_tensors, open_session
from service.errors import BundleError

LABELS_PER_RUN = 1024


class LabelEncoder:
    """Turns embeddings into queries; safe to use from several threads.

    Attributes:
        width: K, the width of a query.
    """

    def __init__(self, session: ort.InferenceSession, width: int) -> None:
        """Takes what `open_label_encoder` has opened."""
        self.width = width
        self._session = session

    def encode(self, embeddings: Embeddings) -> QueryArray:
        """Returns the queries [L, K] of embeddings [L, E], in bounded memory."""
        queries = np.empty((len(embeddings), self.width), np.float32)
        for start in range(0, len(embeddings), LABELS_PER_RUN):
            chunk = slice(start, start + LABELS_PER_RUN)
            (queries[chunk],) = self._session.run(["queries"], {"embeddings": embeddings[chunk]})
        return queries


def open_label_encoder(bundle: Bundle, threads: int) -> LabelEncoder | None:
    """Opens a bundle's label encoder and tries it; None where there is no open head.

    Raises:
        BundleError: the graph is damaged, or is not what the manifest says.
    """
    precision = bundle.label_precision("label_encoder")
    if precision is None or bundle.card.open_head is None:
        return None
    width = bundle.card.open_head.embedding_space.width
    session = open_session(bundle, "label_encoder", Place("cpu", precision, threads))
    check_tensors("label_encoder", session.get_inputs(), embeddings=("float", (width,)))
    check_tensors("label_encoder", session.get_outputs(), queries=("float", (None,)))
    try:
        (found,) = session.run(["queries"], {"embeddings": np.ones((2, width), np.float32)})
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise BundleError(f"label_encoder does not run: {' '.join(str(error).split())}") from error
    if len(found) != 2:
        raise BundleError(f"label_encoder gave queries of shape {list(found.shape)}")
    return LabelEncoder(session, found.shape[1])
