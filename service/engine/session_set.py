"""The image graphs as ONNX Runtime sessions, and the run of a batch through them.

The encoder runs for all images; the trained head for the images that ask for it, and the open head
once for each distinct query matrix, or for the labels of one that a screen kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.bundle.card import CPU_DEVICES
from service.bundle.manifest import GraphName
from service.bundle.reader import Bundle
from service.engine.heads import (
    LABELS_PER_RUN,
    Head,
    HeadResults,
    LogitsArray,
    QueryArray,
    ScreenedQueries,
    SomeQueries,
)
from service.engine.screen import ScreenSessions, open_screen
from service.engine.sessions import SessionConfig, TensorSpec, check_tensors, open_session
from service.engine.tensors import QueryCache, Tensor, cut_rows, run_bound, run_graph
from service.errors import InferenceFailed
from service.images.decode import PixelArray
from service.scheduling.stages import time_stage

# Two photos of 120 kept labels each take 7.1 ms in one run of the open head and 7.8 in two if they
# keep 150 together, but 8.1 in one and 7.3 in two if they keep 240 together.
_MOST_SHARED = 1.5
# Other devices than ONNX Runtime's CPU prepare kernels for each new number of labels.
_KEPT_STEP = 64
_GPU_MEMORY = "cuda"  # ONNX Runtime's name of it
_MEMORY: TensorSpec = ("float", (None, None))
_Tokens: TypeAlias = NDArray[np.float32] | ort.OrtValue
_Pair: TypeAlias = tuple[int, int]  # row of an image, `id` of a head


class _Run(NamedTuple):
    """One run of the open head for labels that screens kept."""

    pairs: list[_Pair]
    labels: NDArray[np.intp]  # ascending positions, at least one
    queries: QueryArray  # of the whole set


@dataclass(frozen=True)
class SessionSet:
    """Sessions of one bundle; thread-safe."""

    encoder: ort.InferenceSession
    trained_head: ort.InferenceSession | None
    open_head: ort.InferenceSession | None
    token_device: str | None = None  # memory of the tokens between encoder and heads, if not CPU
    query_cache: QueryCache | None = None  # on a GPU
    one_by_one: bool = False  # one run of the encoder for each image
    screen: ScreenSessions | None = None
    kept_step: int = 1  # the number of kept labels in a run is padded to a multiple of this

    def run(
        self, images: PixelArray, asked: Sequence[Sequence[Head]], explained: Collection[int] = ()
    ) -> list[HeadResults]:
        """Runs one batch; see `Engine.run`."""
        with time_stage("encode"):
            tokens = self._encode(images)
        with time_stage("head"):
            return self._run_heads(tokens, asked, explained)

    def _encode(self, images: PixelArray) -> _Tokens:
        if self.token_device is not None:
            return run_bound(self.encoder, ["tokens"], self.token_device, images=images)[0]
        step = 1 if self.one_by_one else len(images)
        parts = [images[start : start + step] for start in range(0, len(images), step)]
        tokens = [run_graph(self.encoder, ["tokens"], images=part)[0] for part in parts]
        return tokens[0] if len(tokens) == 1 else np.concatenate(tokens)

    def _run_heads(
        self, tokens: _Tokens, asked: Sequence[Sequence[Head]], explained: Collection[int]
    ) -> list[HeadResults]:
        heads = {id(head): head for wanted in asked for head in wanted}
        pairs = {(row, id(head)): head for row, wanted in enumerate(asked) for head in wanted}
        screened = {pair: h for pair, h in pairs.items() if isinstance(h, ScreenedQueries)}
        rows_of: dict[int, list[int]] = defaultdict(list)
        for row, key in sorted(pairs.keys() - screened.keys()):
            rows_of[key].append(row)
        logits: dict[_Pair, LogitsArray] = {}
        memories: dict[_Pair, LogitsArray] = {}
        kept = self._keep(tokens, screened)
        logits |= {pair: np.zeros(0, np.float32) for pair in kept}
        for run in _plan(screened, kept, explained):
            with_memory = any(row in explained for row, _ in run.pairs)
            found, *memory = self._score_kept(tokens, run, with_memory=with_memory)
            for place, pair in enumerate(run.pairs):
                logits[pair] = found[place, np.searchsorted(run.labels, kept[pair])]
                if memory:
                    memories[pair] = memory[0][place]
        for key, rows in rows_of.items():
            with_memory = any(row in explained for row in rows)
            outputs = ["logits", "memory"] if with_memory else ["logits"]
            for into, found in zip(
                (logits, memories), self._score(tokens, rows, heads[key], outputs), strict=False
            ):
                into.update(zip(((row, key) for row in rows), found, strict=True))
        return [
            HeadResults(
                tuple(logits[row, id(head)] for head in wanted),
                tuple(memories[row, id(head)] for head in wanted) if row in explained else (),
                tuple(kept.get((row, id(head))) for head in wanted),
            )
            for row, wanted in enumerate(asked)
        ]

    def _keep(
        self, tokens: _Tokens, screened: Mapping[_Pair, ScreenedQueries]
    ) -> dict[_Pair, NDArray[np.intp]]:
        if not screened:
            return {}
        assert self.screen is not None
        asked = [(row, head) for (row, _), head in screened.items()]
        return dict(zip(screened, self.screen.keep(tokens, asked, self._split), strict=True))

    def _score_kept(self, tokens: _Tokens, run: _Run, *, with_memory: bool) -> list[LogitsArray]:
        """Returns logits [P, L or more] and perhaps memories [P, S, D] of the P pairs of a run."""
        rows = sorted({row for row, _ in run.pairs})
        padded = np.pad(run.labels, (0, -len(run.labels) % self.kept_step), mode="edge")
        outputs = ["logits", "memory"] if with_memory else ["logits"]
        results = self._score(tokens, rows, SomeQueries(run.queries, padded), outputs)
        places = [rows.index(row) for row, _ in run.pairs]
        return [result[places] for result in results]

    def _score(
        self, tokens: _Tokens, rows: list[int], head: Head, outputs: list[str]
    ) -> list[LogitsArray]:
        if isinstance(tokens, ort.OrtValue):
            # Running the head for the unused rows between costs less than copying the used ones.
            span = cut_rows(tokens, rows[0], rows[-1])
            own = [row - span.start for row in rows]
            return [found[own] for found in self._run_head(span, head, outputs)]
        some = tokens if len(rows) == len(tokens) else tokens[rows]
        return self._run_head(some, head, outputs)

    def _run_head(self, tokens: Tensor, head: Head, outputs: list[str]) -> list[LogitsArray]:
        assert not isinstance(head, ScreenedQueries)
        if head is None:
            assert self.trained_head is not None
            return run_graph(self.trained_head, outputs, tokens=tokens)
        assert self.open_head is not None
        chunks = iter(self._split(head))
        logits, *memory = run_graph(self.open_head, outputs, tokens=tokens, queries=next(chunks))
        more = [run_graph(self.open_head, ["logits"], tokens=tokens, queries=q)[0] for q in chunks]
        return [np.concatenate([logits, *more], axis=1) if more else logits, *memory]

    def _split(self, queries: QueryArray | SomeQueries) -> Iterable[Tensor]:
        starts = range(0, len(queries), LABELS_PER_RUN)
        chunks = (queries[start : start + LABELS_PER_RUN] for start in starts)
        if self.query_cache is None or isinstance(queries, SomeQueries):
            return chunks
        return self.query_cache.find(queries, list(chunks))


def _plan(
    screened: Mapping[_Pair, ScreenedQueries],
    kept: Mapping[_Pair, NDArray[np.intp]],
    explained: Collection[int],
) -> Iterator[_Run]:
    """Plans the runs: images share one if their kept labels are much the same."""
    groups: dict[int, dict[_Pair, NDArray[np.intp]]] = defaultdict(dict)
    for pair, head in screened.items():
        if len(kept[pair]):
            groups[id(head.queries)][pair] = kept[pair]
        elif pair[0] in explained:
            # Only a run gives the memory.
            groups[id(head.queries)][pair] = np.zeros(1, np.intp)
    for group in groups.values():
        queries = screened[next(iter(group))].queries
        union = np.unique(np.concatenate([*group.values()]))
        if len(union) <= _MOST_SHARED * max(map(len, group.values())):
            yield _Run([*group], union, queries)
        else:
            yield from (_Run([pair], labels, queries) for pair, labels in group.items())


def open_session_set(bundle: Bundle, config: SessionConfig) -> SessionSet:
    """Opens and checks the image graphs of a bundle; raises as `open_session` does."""
    card = bundle.card
    encoder = open_encoder(bundle, config)
    width = encoder.get_outputs()[0].shape[-1]
    tokens = ("float", (None, width if isinstance(width, int) else None))
    trained_head = open_head = None
    if card.trained_head is not None:
        num_labels = card.trained_head.num_labels
        trained_head = _open_head(bundle, "trained_head", config, num_labels, tokens=tokens)
    if card.open_head is not None:
        inputs = {"tokens": tokens, "queries": ("float", (None,))}
        open_head = _open_head(bundle, "open_head", config, None, **inputs)
    sessions = SessionSet(
        encoder,
        trained_head,
        open_head,
        screen=open_screen(bundle, config, tokens),
        kept_step=1 if config.device == "cpu" else _KEPT_STEP,
    )
    if config.device not in CPU_DEVICES:
        return replace(sessions, token_device=_GPU_MEMORY, query_cache=QueryCache(_GPU_MEMORY))
    # On a CPU, an fp32 encoder runs image by image: the activations of one nearly fill a core's
    # cache, and small weight matrices gain nothing from a batch. Heads have large ones and do gain.
    fp32 = bundle.image_precision("encoder", config.precision) == "fp32"
    return replace(sessions, one_by_one=fp32 and config.device == "cpu")


def _open_head(
    bundle: Bundle,
    name: GraphName,
    config: SessionConfig,
    num_labels: int | None,
    **inputs: TensorSpec,
) -> ort.InferenceSession:
    head = open_session(bundle, name, config)
    # Heads that have maps return their memory too.
    memory = {"memory": _MEMORY} if f"{name}_maps" in bundle.manifest.graphs else {}
    check_tensors(name, head.get_inputs(), **inputs)
    check_tensors(name, head.get_outputs(), logits=("float", (num_labels,)), **memory)
    return head


def open_encoder(bundle: Bundle, config: SessionConfig) -> ort.InferenceSession:
    """Opens and checks the encoder alone; raises as `open_session` does."""
    encoder, contract = open_session(bundle, "encoder", config), bundle.card.input
    image_shape = (contract.height, contract.width, 3)
    check_tensors("encoder", encoder.get_inputs(), images=("uint8", image_shape))
    check_tensors("encoder", encoder.get_outputs(), tokens=("float", (None, None)))
    return encoder


class MapGraphs:
    """Draws attention maps on the CPU; thread-safe. `trained`, `open`: whether these have maps."""

    def __init__(self, bundle: Bundle) -> None:
        """Raises `BundleError` for a damaged graph."""
        self._trained = _open_maps(bundle, "trained_head_maps", labels=("int64", ()))
        self._open = _open_maps(bundle, "open_head_maps", queries=("float", (None,)))
        self.trained = self._trained is not None
        self.open = self._open is not None

    def draw(
        self, memory: NDArray[np.float32], labels: NDArray[np.int64] | QueryArray
    ) -> NDArray[np.float32]:
        """Returns maps [L, rows, columns], or raises `InferenceFailed`.

        `memory` [S, D] is that of the head that scored the labels, `labels` the positions of
        trained labels [L] or the queries of open ones [L, K].
        """
        trained = labels.ndim == 1
        session = self._trained if trained else self._open
        assert session is not None, "check `trained` or `open` first"
        inputs = {"memory": memory[np.newaxis], "labels" if trained else "queries": labels}
        try:
            (maps,) = session.run(["maps"], inputs)
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise InferenceFailed("the maps could not be drawn") from error
        return np.asarray(maps[0], np.float32)


def _open_maps(
    bundle: Bundle, name: GraphName, **labels: TensorSpec
) -> ort.InferenceSession | None:
    if name not in bundle.manifest.graphs:
        return None
    session = open_session(bundle, name, SessionConfig("cpu", "fp32"))
    check_tensors(name, session.get_inputs(), memory=_MEMORY, **labels)
    check_tensors(name, session.get_outputs(), maps=("float", (None, None, None)))
    return session
