"""Builds label sets of definitions, for a bundle that knows texts, photos or both."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from service.engine.heads import Embeddings, LabelVectors
from service.engine.shared_arrays import SharedArrays
from service.labels.definition import Definition, check_embeddings, check_fit
from service.labels.encoders import LabelEncoders
from service.labels.label_set import LabelSet, Origin, make_open_set, teach
from service.labels.sources.learnt import Lessons
from service.labels.whitening import Whitening

logger = logging.getLogger(__name__)


class PhotoSpace(NamedTuple):
    """The fingerprint of the encoder of photos, and its whitening if labels can learn."""

    encoder: str = ""
    whitening: Whitening | None = None


class LabelSetBuilder:
    """Builds label sets; use it from one event loop. Without an open head, `encoders` is None."""

    def __init__(
        self, encoders: LabelEncoders | None, photos: PhotoSpace, arrays: SharedArrays | None = None
    ) -> None:
        self.encoders = encoders
        self.photos = photos
        self._arrays = arrays

    @property
    def encodes_text(self) -> bool:
        """Whether labels may come without an embedding."""
        return self.encoders is not None and self.encoders.encodes_text

    def check(self, definition: Definition, learnt: Collection[str]) -> Definition:
        """Returns a set as it fits the bundle; raises the `LabelSetError` of `check_fit`."""
        space = None if self.encoders is None else self.encoders.head.embedding_space
        return check_fit(definition, space, encodes_text=self.encodes_text, learnt=learnt)

    async def embed(self, definition: Definition) -> Embeddings:
        """Returns the embeddings [L, E] of a checked set; E is 0 if it has no texts."""
        if self.encoders is None or not (definition.given or self.encodes_text):
            return np.zeros((len(definition.names), 0), np.float32)
        return await self.encoders.embed(definition)

    async def make(
        self,
        definition: Definition,
        embeddings: Embeddings,
        version: str = "0",
        origin: Origin = "store",
        *,
        start: LabelVectors | None = None,
    ) -> LabelSet:
        """Returns the snapshot of a set without its lessons.

        `start` has the queries of its first labels, which are not computed again; if it has all,
        `embeddings` may be empty. Raises `InvalidLabelSet` for embeddings that do not fit, or make
        the model overflow.
        """
        encoders = self.encoders
        if encoders is None or (start is None and not embeddings.shape[1]):
            return make_open_set(definition, None, None, version=version, origin=origin)
        if start is None or len(start.queries) < len(embeddings):
            new = embeddings[0 if start is None else len(start.queries) :]
            check_embeddings(new, encoders.head.embedding_space.width)
            parts = [*([] if start is None else [start]), await encoders.project(new)]
            # Of 10,000 labels, 85 MB are copied: 0.2 s.
            start = await asyncio.to_thread(_join, parts, self._arrays)
        # 33 ms for 50,000 labels.
        return await asyncio.to_thread(encoders.make_set, definition, start, version, origin)

    async def teach(self, labels: LabelSet, lessons: Lessons, others: Collection[str]) -> LabelSet:
        """Returns a set with these lessons; labels in `others` have some of other encoders."""
        whitening = self.photos.whitening
        if whitening is None or labels.activation == "softmax":
            lessons, others = {}, {*lessons, *others}
        unused = frozenset(others) - lessons.keys()
        if unused - labels.unused_lessons:
            logger.warning(
                "label set %s: what %d label(s) have learnt is not used: it is of another model, "
                "or the scores are an uncalibrated softmax",
                *(labels.name, len(unused)),
            )
        if not (lessons or unused or labels.learnt or labels.unused_lessons):
            return labels
        return await asyncio.to_thread(teach, labels, lessons, unused, whitening)


def _join(parts: Sequence[LabelVectors], shared: SharedArrays | None) -> LabelVectors:
    columns = {name: [part.arrays[name] for part in parts] for name in parts[0].arrays}
    joined = {n: rows[0] if len(rows) == 1 else np.concatenate(rows) for n, rows in columns.items()}
    if shared is not None:
        joined = {name: shared.share(rows) for name, rows in joined.items()}
    return LabelVectors(joined.pop("queries"), joined or None)
