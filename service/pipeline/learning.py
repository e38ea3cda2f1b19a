"""A label learns from photos: they are encoded once, in the pipeline's batches, and not kept."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.engine.heads import LogitsArray, NoHead, ScreenedLogits, SomeQueries
from service.errors import ImageError
from service.labels.examples import Example
from service.labels.label_set import LabelSet
from service.labels.whitening import Vector, Whitening
from service.pipeline.pipeline import Pipeline
from service.pipeline.scoring import score_labels
from service.pipeline.selection import select_labels
from service.question import Question
from service.scheduling.tasks import collect_in_order


@dataclass(frozen=True)
class LearntLabel:
    """A label set after one of its labels has learnt."""

    labels: LabelSet
    created: bool  # whether the set is new
    added: int  # examples
    repeated: int  # photos that are examples already, or nearly so
    positive: list[float]  # scores of the photos now, in their order
    negative: list[float]


async def learn_label(  # noqa: PLR0913 - the photos of both kinds, and how to write
    pipeline: Pipeline,
    name: str,
    label: str,
    positive: Sequence[bytes],
    negative: Sequence[bytes],
    *,
    replace: bool = False,
    if_version: int | None = None,
) -> LearntLabel:
    """Adds photos, at least one, to the examples of a label; `replace` removes its others.

    A set or label that is missing is made. Raises as `Catalogue.for_learning`,
    `RegisteredSets.learn` and `Pipeline.predict`; one unusable photo fails all, and nothing is
    written. The caller admits it.
    """
    sets, whitening = pipeline.catalogue.for_learning(name), pipeline.catalogue.whitening
    assert whitening is not None, "`for_learning` has checked it"
    prepared = await sets.prepare_label(name, label)
    queries = prepared.queries
    head = NoHead(1) if queries is None else SomeQueries(queries, np.zeros(1, np.intp))
    deadline = pipeline.make_deadline()

    async def read(
        photo: bytes, place: str
    ) -> tuple[LogitsArray | ScreenedLogits, Vector, Example]:
        try:
            result = await pipeline.embed(photo, (head,), deadline)
        except ImageError as error:
            error.detail = ": ".join(filter(None, (place, error.detail)))
            raise
        logits, embedding = result.logits[0], result.embedding  # the pixels are not kept
        assert embedding is not None
        return logits, embedding, await make_example(photo, embedding, whitening)

    works = (
        read(photo, f"Photo {number} of {len(photos)} `{kind}` photos")
        for kind, photos in (("positive", positive), ("negative", negative))
        for number, photo in enumerate(photos, start=1)
    )
    found = await collect_in_order(works, pipeline.concurrency)
    examples, middle = [example for _, _, example in found], len(positive)
    learnt = await sets.learn(
        *(name, label, prepared, examples[:middle], examples[middle:]),
        replace=replace,
        if_version=if_version,
    )
    question = Question(label_set=[name], include=[label], top_k=1)
    selection = select_labels([learnt.labels], question)
    scores = [score_labels([logits], selection, f)[0].score for logits, f, _ in found]
    counts = learnt.added, len(found) - learnt.added
    return LearntLabel(learnt.labels, learnt.created, *counts, scores[:middle], scores[middle:])


async def make_example(photo: bytes, embedding: Vector, whitening: Whitening) -> Example:
    """Returns what a label learns of a photo with this embedding [D]."""
    digest = await asyncio.to_thread(lambda: hashlib.sha256(photo).digest())
    return Example(digest, whitening.whiten(embedding[np.newaxis])[0])


async def embed_photo(pipeline: Pipeline, photo: bytes, deadline: float) -> Vector:
    """Returns a photo's embedding [D], of length 1; no head runs. Raises as `Pipeline.predict`."""
    embedding = (await pipeline.embed(photo, (), deadline)).embedding
    assert embedding is not None
    return embedding
