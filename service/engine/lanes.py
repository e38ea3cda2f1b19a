"""A lane: one session for each image graph, and how a batch goes through them.

In: images uint8 [B, H, W, 3] and, for each image, the heads that it asks for. Out: for each
image, the logits of each of its heads. The encoder runs for all images; then the trained
head for those that ask for it, and the open head once for each distinct matrix of queries.
Next: `engine.py`, which chooses the lane and names what goes wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.bundle.card import CPU_DEVICES
from service.bundle.manifest import MAP_GRAPHS
from service.bundle.reader import Bundle
from service.engine.heads import Head, QueryArray, SomeQueries
from service.engine.kept_queries import KeptQueries
from service.engine.sessions import Place, check_tensors, open_session
from service.engine.tensors import Tensor, cut_rows, run_bound, run_graph
from service.images.decode import PixelArray
from service.scheduling.stages import time_stage

_Description = tuple[str, tuple[int | None, ...]]
_GPU_MEMORY = "cuda"  # ONNX Runtime's name of it
Tokens: TypeAlias = NDArray[np.float32] | ort.OrtValue
LogitsArray = NDArray[np.float32]

LABELS_PER_RUN = 1024
"""Most labels in one run of the open head: its activations grow with images x labels, its
results do not, so this bounds the memory of any number of labels. Fewer labels a run would pay
more often for the keys and values that each run computes from the tokens."""


class HeadResults(NamedTuple):
    """What the heads of one image gave, in the order in which they were asked for.

    Attributes:
        logits: float32 [L] or [N] of each head.
        memories: float32 [S, D] of each head where the image is explained, else none.
    """

    logits: tuple[LogitsArray, ...]
    memories: tuple[NDArray[np.float32], ...] = ()


@dataclass(frozen=True)
class Lane:
    """Sessions of one bundle; several threads may run the same lane at once.

    Attributes:
        encoder: images -> tokens.
        trained_head: tokens -> logits; None where the bundle has none.
        open_head: tokens and queries -> logits; None where the bundle has none.
        token_device: ONNX Runtime's name of the device that the tokens stay on between encoder
            and heads; None where that is the CPU.
        kept_queries: what the open head need not be brought again; None on a CPU.
        one_by_one: whether the encoder runs for each image of a batch by itself.
    """

    encoder: ort.InferenceSession
    trained_head: ort.InferenceSession | None
    open_head: ort.InferenceSession | None
    token_device: str | None = None
    kept_queries: KeptQueries | None = None
    one_by_one: bool = False

    def run(
        self, images: PixelArray, asked: Sequence[Sequence[Head]], explained: Collection[int] = ()
    ) -> list[HeadResults]:
        """Runs one batch.

        Args:
            images: uint8 [B, H, W, 3], RGB.
            asked: for each image, the heads to run: queries [L, K], or None for the trained.
            explained: rows of the images whose maps will be asked for; `explanation.py`.

        Returns:
            The results of each image.
        """
        with time_stage("encode"):
            tokens = self._encode(images)
        with time_stage("head"):
            return self._run_heads(tokens, asked, explained)

    def _run_heads(
        self, tokens: Tokens, asked: Sequence[Sequence[Head]], explained: Collection[int]
    ) -> list[HeadResults]:
        places: dict[int, list[tuple[int, int]]] = defaultdict(list)
        heads: dict[int, Head] = {}
        for row, wanted in enumerate(asked):
            for slot, head in enumerate(wanted):
                heads[id(head)] = head
                places[id(head)].append((row, slot))
        logits: dict[tuple[int, int], LogitsArray] = {}
        memories: dict[tuple[int, int], LogitsArray] = {}
        for key, head in heads.items():
            rows = [row for row, _ in places[key]]
            outputs = ["logits", *(["memory"] if any(row in explained for row in rows) else [])]
            found, *memory = self._score(tokens, rows, head, outputs)
            logits.update(zip(places[key], found, strict=True))
            for known in memory:
                memories.update(zip(places[key], known, strict=True))
        slots = [[(row, slot) for slot in range(len(wanted))] for row, wanted in enumerate(asked)]
        return [
            HeadResults(
                tuple(logits[place] for place in own),
                tuple(memories[place] for place in own) if row in explained else (),
            )
            for row, own in enumerate(slots)
        ]

    def _encode(self, images: PixelArray) -> Tokens:
        if self.token_device is not None:
            return run_bound(self.encoder, ["tokens"], self.token_device, images=images)[0]
        step = 1 if self.one_by_one else len(images)
        parts = [images[start : start + step] for start in range(0, len(images), step)]
        tokens = [run_graph(self.encoder, ["tokens"], images=part)[0] for part in parts]
        return tokens[0] if len(tokens) == 1 else np.concatenate(tokens)

    def _score(
        self, tokens: Tokens, rows: list[int], head: Head, outputs: list[str]
    ) -> list[LogitsArray]:
        """Returns the outputs of a head for some rows."""
        if isinstance(tokens, ort.OrtValue):
            # A head costs little for the rows between that do not ask for it; a copy costs more.
            span = cut_rows(tokens, rows[0], rows[-1])
            own = [row - span.start for row in rows]
            return [found[own] for found in self._score_all(span, head, outputs)]
        some = tokens if len(rows) == len(tokens) else tokens[rows]
        return self._score_all(some, head, outputs)

    def _score_all(self, tokens: Tensor, head: Head, outputs: list[str]) -> list[LogitsArray]:
        if head is None:
            assert self.trained_head is not None
            return run_graph(self.trained_head, outputs, tokens=tokens)
        return self._score_open(tokens, head, outputs)

    def _score_open(
        self, tokens: Tensor, queries: QueryArray | SomeQueries, outputs: list[str]
    ) -> list[LogitsArray]:
        assert self.open_head is not None
        chunks = iter(self._split(queries))
        logits, *memory = run_graph(self.open_head, outputs, tokens=tokens, queries=next(chunks))
        more = [run_graph(self.open_head, ["logits"], tokens=tokens, queries=q)[0] for q in chunks]
        return [np.concatenate([logits, *more], axis=1) if more else logits, *memory]

    def _split(self, queries: QueryArray | SomeQueries) -> Iterable[Tensor]:
        """Returns the queries in chunks of one run each."""
        starts = range(0, len(queries), LABELS_PER_RUN)
        chunks = (queries[start : start + LABELS_PER_RUN] for start in starts)
        if self.kept_queries is None or isinstance(queries, SomeQueries):
            return chunks
        return self.kept_queries.find(queries, list(chunks))


def open_lane(bundle: Bundle, place: Place) -> Lane:
    """Opens and checks the image graphs of a bundle.

    Args:
        bundle: what to open.
        place: where and how it runs.

    Raises:
        StartError: the device does not work here.
        BundleError: a graph is damaged, or is not what the manifest says.
    """
    card = bundle.card
    encoder = open_encoder(bundle, place)
    width = encoder.get_outputs()[0].shape[-1]
    tokens = ("float", (None, width if isinstance(width, int) else None))
    trained_head = open_head = None
    # Heads that have maps give their memory too.
    memories: dict[str, dict[str, _Description]] = {
        name: {"memory": ("float", (None, None))}
        for name in MAP_GRAPHS
        if name in bundle.manifest.graphs
    }
    if card.trained_head is not None:
        trained_head = open_session(bundle, "trained_head", place)
        logits: _Description = ("float", (card.trained_head.num_labels,))
        memory = memories.get("trained_head_maps", {})
        check_tensors("trained_head", trained_head.get_inputs(), tokens=tokens)
        check_tensors("trained_head", trained_head.get_outputs(), logits=logits, **memory)
    if card.open_head is not None:
        open_head = open_session(bundle, "open_head", place)
        queries = ("float", (None,))
        check_tensors("open_head", open_head.get_inputs(), tokens=tokens, queries=queries)
        memory = memories.get("open_head_maps", {})
        check_tensors("open_head", open_head.get_outputs(), logits=("float", (None,)), **memory)
    if place.device not in CPU_DEVICES:
        kept = KeptQueries(_GPU_MEMORY)
        return Lane(encoder, trained_head, open_head, _GPU_MEMORY, kept_queries=kept)
    # Activations of float32 for one image are near the size of a core's cache already; small
    # matrices of weights gain nothing from more rows. Heads, whose weights are large, do.
    fp32 = bundle.image_precision("encoder", place.precision) == "fp32"
    one_by_one = fp32 and place.device == "cpu"
    return Lane(encoder, trained_head, open_head, one_by_one=one_by_one)


def open_encoder(bundle: Bundle, place: Place) -> ort.InferenceSession:
    """Opens and checks the encoder alone.

    Args:
        bundle: what to open.
        place: where and how it runs.

    Raises:
        StartError: the device does not work here.
        BundleError: the graph is damaged, or is not what the manifest says.
    """
    encoder, contract = open_session(bundle, "encoder", place), bundle.card.input
    image_shape = (contract.height, contract.width, 3)
    check_tensors("encoder", encoder.get_inputs(), images=("uint8", image_shape))
    check_tensors("encoder", encoder.get_outputs(), tokens=("float", (None, None)))
    return encoder
