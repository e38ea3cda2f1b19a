"""A lane: one session for each image graph, and how a batch goes through them.

In: images uint8 [B, H, W, 3] and, for each image, the heads that it asks for. Out: for each
image, the logits of each of its heads. The encoder runs once for all images; then the trained
head for those that ask for it, and the open head once for each distinct matrix of queries.
Next: `engine.py`, which chooses the lane and names what goes wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.bundle import Bundle
from service.card import Device, Precision
from service.images import PixelArray
from service.labels.label_set import QueryArray
from service.selection import Head
from service.sessions import check_tensors, open_session
from service.stages import time_stage

TokenArray = NDArray[np.float32]
LogitsArray = NDArray[np.float32]

LABELS_PER_RUN = 1024
"""Most labels in one run of the open head: its activations grow with images x labels, its
results do not, so this bounds the memory of any number of labels. Fewer labels a run would pay
more often for the keys and values that each run computes from the tokens."""


@dataclass(frozen=True)
class Lane:
    """Sessions of one bundle; several threads may run the same lane at once.

    Attributes:
        encoder: images -> tokens.
        trained_head: tokens -> logits; None where the bundle has none.
        open_head: tokens and queries -> logits; None where the bundle has none.
    """

    encoder: ort.InferenceSession
    trained_head: ort.InferenceSession | None
    open_head: ort.InferenceSession | None

    def run(
        self, images: PixelArray, asked: Sequence[Sequence[Head]]
    ) -> list[tuple[LogitsArray, ...]]:
        """Runs one batch.

        Args:
            images: uint8 [B, H, W, 3], RGB.
            asked: for each image, the heads to run: queries [L, K], or None for the trained.

        Returns:
            For each image, logits float32 [L] or [N] for each of its heads, in their order.
        """
        with time_stage("encode"):
            tokens = _run(self.encoder, "tokens", images=images)
        with time_stage("head"):
            return self._run_heads(tokens, asked)

    def _run_heads(
        self, tokens: TokenArray, asked: Sequence[Sequence[Head]]
    ) -> list[tuple[LogitsArray, ...]]:
        places: dict[int, list[tuple[int, int]]] = defaultdict(list)
        heads: dict[int, Head] = {}
        for row, wanted in enumerate(asked):
            for slot, head in enumerate(wanted):
                heads[id(head)] = head
                places[id(head)].append((row, slot))
        answers: list[list[LogitsArray]] = [[np.empty(0, np.float32)] * len(w) for w in asked]
        for key, head in heads.items():
            rows = [row for row, _ in places[key]]
            some = tokens if len(rows) == len(tokens) else tokens[rows]
            for (row, slot), logits in zip(places[key], self._score(some, head), strict=True):
                answers[row][slot] = logits
        return [tuple(answer) for answer in answers]

    def _score(self, tokens: TokenArray, head: Head) -> LogitsArray:
        if head is None:
            assert self.trained_head is not None
            return _run(self.trained_head, "logits", tokens=tokens)
        return self._score_open(tokens, head)

    def _score_open(self, tokens: TokenArray, queries: QueryArray) -> LogitsArray:
        assert self.open_head is not None
        starts = range(0, len(queries), LABELS_PER_RUN)
        chunks = [queries[start : start + LABELS_PER_RUN] for start in starts]
        logits = [_run(self.open_head, "logits", tokens=tokens, queries=chunk) for chunk in chunks]
        return logits[0] if len(logits) == 1 else np.concatenate(logits, axis=1)


def open_lane(bundle: Bundle, device: Device, precision: Precision, threads: int) -> Lane:
    """Opens and checks the image graphs of a bundle.

    Raises:
        StartError: the device does not work here.
        BundleError: a graph is damaged, or is not what the manifest says.
    """
    card = bundle.card
    encoder = open_session(bundle, "encoder", device, precision, threads)
    image_shape = (card.input.height, card.input.width, 3)
    check_tensors("encoder", encoder.get_inputs(), images=("uint8", image_shape))
    check_tensors("encoder", encoder.get_outputs(), tokens=("float", (None, None)))
    width = encoder.get_outputs()[0].shape[-1]
    tokens = ("float", (None, width if isinstance(width, int) else None))
    trained_head = open_head = None
    if card.trained_head is not None:
        trained_head = open_session(bundle, "trained_head", device, precision, threads)
        logits = ("float", (card.trained_head.num_labels,))
        check_tensors("trained_head", trained_head.get_inputs(), tokens=tokens)
        check_tensors("trained_head", trained_head.get_outputs(), logits=logits)
    if card.open_head is not None:
        open_head = open_session(bundle, "open_head", device, precision, threads)
        queries = ("float", (None,))
        check_tensors("open_head", open_head.get_inputs(), tokens=tokens, queries=queries)
        check_tensors("open_head", open_head.get_outputs(), logits=("float", (None,)))
    return Lane(encoder, trained_head, open_head)


def _run(session: ort.InferenceSession, output: str, **inputs: NDArray[Any]) -> NDArray[np.float32]:
    (found,) = session.run([output], inputs)
    return np.asarray(found, np.float32)
