"""The image graphs as ONNX Runtime sessions, and the run of a batch through them.

The encoder runs for all images; the trained head for the images that ask for it, and the open head
once for each distinct query matrix. The screened head takes its place for `ScreenedQueries`, and no
graph runs for `ZeroHead`.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.bundle.card import CPU_DEVICES
from service.bundle.manifest import GraphName
from service.bundle.reader import Bundle
from service.engine.heads import (
    LABELS_PER_RUN,
    LONG_LABELS,
    Head,
    HeadResults,
    Images,
    LogitsArray,
    QueryArray,
    ScreenedLogits,
    ScreenedQueries,
    SomeQueries,
    TrainedHead,
    ZeroHead,
)
from service.engine.sessions import KEYS, SessionConfig, TensorSpec, open_checked
from service.engine.tensors import QueryCache, Tensor, cut_rows, run_bound, run_graph
from service.errors import InferenceFailed
from service.stages import Stage

# Images x labels of one run of the screened head, which takes 0.4 kB for each. With 50,000 labels,
# a batch of 4 photos takes 0.87 of the time of 4 runs.
_SCREENED_PER_RUN = 256 * LABELS_PER_RUN
# A run takes as long as 50 labels, so many sets of fewer share one if the same images ask for them.
_MAX_JOINED_LABELS, _MIN_JOINED, _MOST_JOINED = 50, 8, 128
_GPU_MEMORY = "cuda"  # ONNX Runtime's name of it
_MATRIX: TensorSpec = ("float", (None,))  # queries or logits
_MEMORY: TensorSpec = ("float", (None, None))
_SCREEN_INPUTS: dict[str, TensorSpec] = {
    "scale": ("float", ()),
    "shift": ("float", ()),
    "wanted": ("int64", ()),
}
_SCREEN_OUTPUTS: dict[str, TensorSpec] = {
    "logits": _MATRIX,
    "positions": ("int64", (None,)),
    "needed": ("int64", ()),
    "memory": _MEMORY,
}
_Tokens: TypeAlias = NDArray[np.float32] | ort.OrtValue
_Row: TypeAlias = LogitsArray | ScreenedLogits


@dataclass(frozen=True)
class SessionSet:
    """Sessions of one bundle; thread-safe."""

    encoder: ort.InferenceSession
    trained_head: ort.InferenceSession | None
    open_head: ort.InferenceSession | None
    screened_head: ort.InferenceSession | None = None
    query_cache: QueryCache | None = None  # on a GPU, in whose memory the tokens stay too
    one_by_one: bool = False  # one run of the encoder for each image
    long_labels: int = LONG_LABELS  # a larger screened head of which most are needed is left out
    two_towers: bool = False  # an image's embedding is its first token, not the mean

    def run(
        self,
        images: Images,
        asked: Sequence[Sequence[Head]],
        explained: Collection[int] = (),
        embedded: Collection[int] = (),
    ) -> list[HeadResults]:
        """Runs one batch; see `Engine.run`."""
        started = time.perf_counter()
        tokens = self._encode(images)
        encoded = time.perf_counter()
        results = self.run_heads(tokens, asked, explained)
        if embedded:
            whole = tokens.numpy() if isinstance(tokens, ort.OrtValue) else tokens
            for row in embedded:
                kept = whole[row].copy() if row in explained else None
                results[row] = results[row]._replace(embedding=self._embed(whole[row]), tokens=kept)
        stages = Stage("encode", started, encoded), Stage("head", encoded, time.perf_counter())
        return [result._replace(stages=stages) for result in results]

    def _encode(self, images: Images) -> _Tokens:
        if self.query_cache is not None:
            return run_bound(self.encoder, ["tokens"], self.query_cache.memory, images=images)[0]
        step = 1 if self.one_by_one else len(images)
        parts = [images[start : start + step] for start in range(0, len(images), step)]
        tokens = [run_graph(self.encoder, ["tokens"], images=part)[0] for part in parts]
        return tokens[0] if len(tokens) == 1 else np.concatenate(tokens)

    def _embed(self, tokens: NDArray[np.float32]) -> NDArray[np.float32]:
        mean = tokens[0] if self.two_towers else tokens.mean(axis=0)
        embedding: NDArray[np.float32] = mean / max(np.linalg.norm(mean), np.finfo(np.float32).tiny)
        return embedding

    def run_heads(
        self, tokens: _Tokens, asked: Sequence[Sequence[Head]], explained: Collection[int] = ()
    ) -> list[HeadResults]:
        """Runs the heads alone, on tokens [B, S, C]."""
        # By identity: requests of the same label set share its query matrix, and so a run.
        heads = {id(head): head for wanted in asked for head in wanted}
        rows_of: dict[int, list[int]] = defaultdict(list)
        for row, key in sorted({(row, id(h)) for row, wanted in enumerate(asked) for h in wanted}):
            rows_of[key].append(row)
        logits: dict[tuple[int, int], _Row] = {}
        memories: dict[tuple[int, int], LogitsArray] = {}
        for keys, head, ends in _join_small(heads, rows_of):
            all_rows = rows_of[keys[0]]
            most = len(all_rows)
            if isinstance(head, ScreenedQueries):
                most = max(1, _SCREENED_PER_RUN // len(head))
            for rows in (all_rows[i : i + most] for i in range(0, len(all_rows), most)):
                with_memory = any(row in explained for row in rows)
                scored, kept = self._score(tokens, rows, head, with_memory=with_memory)
                for row, values in zip(rows, scored, strict=True):
                    # Only logits of joined heads have ends.
                    parts: Sequence[_Row] = np.split(values, ends) if ends else [values]
                    logits.update(zip(((row, key) for key in keys), parts, strict=True))
                for row, memory in zip(rows, kept, strict=False):  # none without memory
                    memories.update(((row, key), memory) for key in keys)
        return [
            HeadResults(
                tuple(logits[row, id(head)] for head in wanted),
                tuple(memories[row, id(head)] for head in wanted) if row in explained else (),
            )
            for row, wanted in enumerate(asked)
        ]

    def _score(
        self, tokens: _Tokens, rows: list[int], head: Head, *, with_memory: bool = False
    ) -> tuple[Sequence[_Row], Sequence[LogitsArray]]:
        """Returns the logits of the rows and, with memory, their memories [S, D]."""
        if isinstance(head, ZeroHead):
            blank = np.zeros(len(head), np.float32)
            return [blank] * len(rows), [np.zeros((0, 0), np.float32)] * len(rows)
        some: Tensor  # a part of the tokens, with the rows at `positions`
        if isinstance(tokens, ort.OrtValue):
            # Running the head for the unused rows between costs less than copying the used ones.
            some = cut_rows(tokens, rows[0], rows[-1])
            positions, count = [row - some.start for row in rows], some.stop - some.start
        else:
            some = tokens if len(rows) == len(tokens) else tokens[rows]
            positions, count = list(range(len(rows))), len(rows)
        outputs = ["memory"] if with_memory else []
        if not isinstance(head, ScreenedQueries):
            all_logits, *memory = self._run_head(some, head, ["logits", *outputs])
            return list(all_logits[positions]), list(memory[0][positions]) if memory else []
        logits, labels, needed, *memory = self._run_screened(some, head, outputs, count)
        scored: list[_Row] = []
        for row, position in zip(rows, positions, strict=True):
            if needed[position] > labels.shape[1]:
                full: Sequence[_Row] = [np.zeros(0, np.float32)]
                if len(head) <= self.long_labels:
                    full, _ = self._score(tokens, [row], head.queries)
                scored += full
                continue
            chosen = labels[position, : needed[position]]
            order = chosen.argsort()
            scored.append(ScreenedLogits(logits[position, order], chosen[order]))
        return scored, list(memory[0][positions]) if memory else []

    def _run_screened(
        self, tokens: Tensor, head: ScreenedQueries, outputs: list[str], count: int
    ) -> list[NDArray[Any]]:
        assert self.screened_head is not None
        arrays = {"queries": head.queries, **head.keys}
        labels: dict[str, Tensor] = {**arrays}
        if (cache := self.query_cache) is not None:
            labels = {name: cache.find(matrix, [matrix])[0] for name, matrix in arrays.items()}
        return run_graph(
            self.screened_head,
            ["logits", "positions", "needed", *outputs],
            tokens=tokens,
            scale=head.scale,
            shift=head.shift,
            wanted=np.full(count, head.wanted, np.int64),
            **labels,
        )

    def _run_head(
        self, tokens: Tensor, head: TrainedHead | QueryArray | SomeQueries, outputs: list[str]
    ) -> list[LogitsArray]:
        if isinstance(head, TrainedHead):
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


def _join_small(
    heads: Mapping[int, Head], rows_of: Mapping[int, Sequence[int]]
) -> Iterator[tuple[list[int], Head, list[int]]]:
    """Yields keys with a head to run: one, or many small open ones of equal rows as one.

    The numbers are where the logits of each but the last end.
    """
    small: dict[tuple[int, ...], dict[int, QueryArray | SomeQueries]] = defaultdict(dict)
    for key, rows in rows_of.items():
        head = heads[key]
        if isinstance(head, np.ndarray | SomeQueries) and len(head) <= _MAX_JOINED_LABELS:
            small[tuple(rows)][key] = head
        else:
            yield [key], head, []
    for known in small.values():
        step = _MOST_JOINED if len(known) >= _MIN_JOINED else 1
        for keys in ([*known][i : i + step] for i in range(0, len(known), step)):
            some = [known[key] for key in keys]
            joined = some[0] if step == 1 else np.concatenate([queries[:] for queries in some])
            yield keys, joined, [*accumulate(map(len, some[:-1]))]


def open_session_set(bundle: Bundle, config: SessionConfig) -> SessionSet:
    """Opens and checks the image graphs of a bundle. Raises what `open_session` raises."""
    card = bundle.card
    encoder = open_encoder(bundle, config)
    width = encoder.get_outputs()[0].shape[-1]
    tokens: TensorSpec = ("float", (None, width if isinstance(width, int) else None))
    trained_head = open_head = screened_head = None
    if card.trained_head is not None:
        logits: TensorSpec = ("float", (card.trained_head.num_labels,))
        trained_head = _open_head(bundle, "trained_head", config, logits, tokens=tokens)
    if card.open_head is not None:
        inputs: dict[str, TensorSpec] = {"tokens": tokens, "queries": _MATRIX}
        open_head = _open_head(bundle, "open_head", config, _MATRIX, **inputs)
        if card.open_head.screen is not None:
            screened_head = open_checked(
                bundle,
                "screened_head",
                config,
                inputs={**inputs, **_SCREEN_INPUTS, **KEYS},
                outputs=_SCREEN_OUTPUTS,
            )
    sessions = SessionSet(
        encoder, trained_head, open_head, screened_head, two_towers=card.has_two_towers
    )
    if config.device not in CPU_DEVICES:
        return replace(sessions, query_cache=QueryCache(_GPU_MEMORY))
    # On a CPU, an fp32 encoder runs image by image: the activations of one nearly fill a core's
    # cache, and small weight matrices gain nothing from a batch. Heads have large ones and do gain.
    # Towers in int8 take their scales from the values of a run: photos would change each other.
    stored = bundle.image_precision("encoder", config.precision)
    alone = card.has_two_towers if stored == "int8" else config.device == "cpu"
    return replace(sessions, one_by_one=alone and stored != "fp16")


def _open_head(
    bundle: Bundle, name: GraphName, config: SessionConfig, logits: TensorSpec, **inputs: TensorSpec
) -> ort.InferenceSession:
    # Heads that have maps return their memory too.
    memory = {"memory": _MEMORY} if f"{name}_maps" in bundle.manifest.graphs else {}
    return open_checked(bundle, name, config, inputs=inputs, outputs={"logits": logits, **memory})


def open_encoder(bundle: Bundle, config: SessionConfig) -> ort.InferenceSession:
    """Opens and checks the encoder alone. Raises what `open_session` raises."""
    inputs: dict[str, TensorSpec] = {"images": ("uint8", bundle.card.input.shape)}
    return open_checked(bundle, "encoder", config, inputs=inputs, outputs={"tokens": _MEMORY})


class MapGraphs:
    """Draws attention maps on the CPU; thread-safe. `trained` and `open` are None without maps."""

    def __init__(self, bundle: Bundle) -> None:
        """Opens the graphs. Raises `BundleError` if one is damaged."""
        self.trained = _open_maps(bundle, "trained_head_maps", labels=("int64", ()))
        self.open = _open_maps(bundle, "open_head_maps", queries=_MATRIX)

    def draw(
        self, memory: NDArray[np.float32], labels: NDArray[np.int64] | QueryArray
    ) -> NDArray[np.float32]:
        """Returns maps [L, rows, columns]. Raises `InferenceFailed` if ONNX Runtime fails.

        `memory` [S, D] is that of the head that scored the labels, `labels` the positions of
        trained labels [L] or the queries of open ones [L, K].
        """
        trained = labels.ndim == 1
        session = self.trained if trained else self.open
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
    return open_checked(
        bundle,
        name,
        SessionConfig("cpu", "fp32"),
        inputs={"memory": _MEMORY, **labels},
        outputs={"maps": ("float", (None, None, None))},
    )
