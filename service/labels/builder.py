"""Builds label sets of definitions, for a bundle that knows texts, photos or both."""

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from service.engine.heads import Embeddings, LabelVectors
from service.engine.shared_arrays import SharedArrays
from service.labels.definition import Definition, check_embeddings, check_fit
from service.labels.encoders import LabelEncoders, append_vectors
from service.labels.examples import Examples
from service.labels.label_set import LabelSet, Origin, add_examples, make_open_set
from service.labels.whitening import Whitening

logger = logging.getLogger(__name__)


class PhotoSpace(NamedTuple):
    """The fingerprint of the encoder of photos, and its whitening if labels can learn."""

    encoder: str = ""
    whitening: Whitening | None = None


class LabelSetBuilder:
    """Builds label sets; use it from one event loop. Without an open head, `encoders` is None."""

    def __init__(
        self,
        encoders: LabelEncoders | None,
        photos: PhotoSpace,
        arrays: SharedArrays | None = None,
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
        version: str,
        origin: Origin,
        known: LabelSet | None = None,
    ) -> LabelSet:
        """Returns the snapshot of a set without its examples.

        Queries that a `known` snapshot has are not computed again. Raises `InvalidLabelSet` for
        embeddings that do not fit, or make the model overflow.
        """
        encoders = self.encoders
        if encoders is None or not embeddings.shape[1]:
            return make_open_set(definition, None, None, version=version, origin=origin)
        vectors, count = None, 0
        if known is not None and known.queries is not None and known.is_start_of(definition):
            vectors, count = LabelVectors(known.queries, known.keys), known.num_labels
        if count < len(embeddings):
            new = embeddings[count:]
            check_embeddings(new, encoders.head.embedding_space.width)
            projected = await encoders.project(new)
            if vectors is not None:
                vectors = append_vectors(vectors, projected)
            elif self._arrays is None:
                vectors = projected
            else:
                vectors = await asyncio.to_thread(_share, projected, self._arrays)
        assert vectors is not None  # a set has labels
        return encoders.make_set(definition, vectors, version, origin)

    async def add_examples(
        self, labels: LabelSet, examples: Mapping[str, Examples], others: Collection[str]
    ) -> LabelSet:
        """Returns a set whose labels have these examples; `others` have those of other encoders."""
        whitening = self.photos.whitening
        if whitening is None or labels.activation == "softmax":
            examples, others = {}, {*examples, *others}
        unused = frozenset(others) - examples.keys()
        if unused - labels.unused_examples:
            logger.warning(
                "label set %s: examples of %d label(s) are not used: they are of another model, or "
                "the scores are an uncalibrated softmax",
                *(labels.name, len(unused)),
            )
        if not (examples or unused or labels.learnt or labels.unused_examples):
            return labels
        return await asyncio.to_thread(add_examples, labels, examples, unused, whitening)


def _share(vectors: LabelVectors, arrays: SharedArrays) -> LabelVectors:
    keys = vectors.keys and {name: arrays.share(rows) for name, rows in vectors.keys.items()}
    return LabelVectors(arrays.share(vectors.queries), keys)
