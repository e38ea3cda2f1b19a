"""A lane: one session for each image graph, and how a batch goes through them.

In: images uint8 [B, H, W, 3] and, for each image, the heads that it asks for. Out: for each
image, the logits of each of its heads. The encoder runs once for all images; then the trained
head for those that ask for it, and the open head once for each distinct matrix of queries.
Next: `engine.py`, which chooses the lane and names what goes wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.bundle import Bundle, GraphName
from service.images import PixelArray
from service.labels.label_set import QueryArray
from service.selection import Head
from service.sessions import Place, check_tensors, open_session

Tokens: TypeAlias = NDArray[np.float32] | ort.OrtValue
Tensor: TypeAlias = NDArray[Any] | ort.OrtValue
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
        memory: ONNX Runtime's name of the device memory that the tokens stay in between encoder
            and heads; None where that is the memory of the CPU.
    """

    encoder: ort.InferenceSession
    trained_head: ort.InferenceSession | None
    open_head: ort.InferenceSession | None
    memory: str | None = None

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
        tokens = self._encode(images)
        places: dict[int, list[tuple[int, int]]] = defaultdict(list)
        heads: dict[int, Head] = {}
        for row, wanted in enumerate(asked):
            for slot, head in enumerate(wanted):
                heads[id(head)] = head
                places[id(head)].append((row, slot))
        answers: list[list[LogitsArray]] = [[np.empty(0, np.float32)] * len(w) for w in asked]
        for key, head in heads.items():
            rows = [row for row, _ in places[key]]
            logits = self._score(tokens, rows, head)
            for (row, slot), found in zip(places[key], logits, strict=True):
                answers[row][slot] = found
        return [tuple(answer) for answer in answers]

    def _encode(self, images: PixelArray) -> Tokens:
        if self.memory is None:
            return _run(self.encoder, "tokens", images=images)
        return _run_bound(self.encoder, "tokens", self.memory, images=images)

    def _score(self, tokens: Tokens, rows: list[int], head: Head) -> LogitsArray:
        """Returns the logits of some rows."""
        if isinstance(tokens, ort.OrtValue):
            # What lies in device memory cannot be cut; a head costs little for the other rows.
            return self._score_all(tokens, head)[rows]
        return self._score_all(tokens if len(rows) == len(tokens) else tokens[rows], head)

    def _score_all(self, tokens: Tokens, head: Head) -> LogitsArray:
        if head is None:
            assert self.trained_head is not None
            return _run(self.trained_head, "logits", tokens=tokens)
        return self._score_open(tokens, head)

    def _score_open(self, tokens: Tokens, queries: QueryArray) -> LogitsArray:
        assert self.open_head is not None
        starts = range(0, len(queries), LABELS_PER_RUN)
        chunks = [queries[start : start + LABELS_PER_RUN] for start in starts]
        logits = [_run(self.open_head, "logits", tokens=tokens, queries=chunk) for chunk in chunks]
        return logits[0] if len(logits) == 1 else np.concatenate(logits, axis=1)


def open_lane(bundle: Bundle, place: Place) -> Lane:
    """Opens and checks the image graphs of a bundle.

    Args:
        bundle: what to open.
        place: where and how it runs; a graph that lacks the precision runs in fp32.

    Raises:
        StartError: the device does not work here.
        BundleError: a graph is damaged, or is not what the manifest says.
    """
    card = bundle.card

    def open_graph(graph: GraphName) -> ort.InferenceSession:
        variant = bundle.image_precision(graph, place.precision)
        return open_session(bundle, graph, replace(place, precision=variant))

    encoder = open_graph("encoder")
    image_shape = (card.input.height, card.input.width, 3)
    check_tensors("encoder", encoder.get_inputs(), images=("uint8", image_shape))
    check_tensors("encoder", encoder.get_outputs(), tokens=("float", (None, None)))
    width = encoder.get_outputs()[0].shape[-1]
    tokens = ("float", (None, width if isinstance(width, int) else None))
    trained_head = open_head = None
    if card.trained_head is not None:
        trained_head = open_graph("trained_head")
        logits = ("float", (card.trained_head.num_labels,))
        check_tensors("trained_head", trained_head.get_inputs(), tokens=tokens)
        check_tensors("trained_head", trained_head.get_outputs(), logits=logits)
    if card.open_head is not None:
        open_head = open_graph("open_head")
        queries = ("float", (None,))
        check_tensors("open_head", open_head.get_inputs(), tokens=tokens, queries=queries)
        check_tensors("open_head", open_head.get_outputs(), logits=("float", (None,)))
    return Lane(encoder, trained_head, open_head, None if place.device == "cpu" else "cuda")


def _run(session: ort.InferenceSession, output: str, **inputs: Tensor) -> NDArray[np.float32]:
    """Runs a graph; the result is copied to the memory of the CPU."""
    if any(isinstance(value, ort.OrtValue) for value in inputs.values()):
        found = _run_bound(session, output, "cpu", **inputs).numpy()
    else:
        (found,) = session.run([output], inputs)
    return np.asarray(found, np.float32)


def _run_bound(
    session: ort.InferenceSession, output: str, memory: str, **inputs: Tensor
) -> ort.OrtValue:
    """Runs a graph; the result stays in the memory that is named, and inputs where they are."""
    binding = session.io_binding()
    for name, value in inputs.items():
        if isinstance(value, ort.OrtValue):
            binding.bind_ortvalue_input(name, value)
        else:
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
    binding.bind_output(output, memory)
    session.run_with_iobinding(binding)
    (found,) = binding.get_outputs()
    return found
