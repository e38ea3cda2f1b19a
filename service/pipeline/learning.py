"""A label learns from photos: they are encoded once, in the pipeline's batches, and not kept."""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from service.calibration import MIN_POSITIVES
from service.engine.heads import LogitsArray, ScreenedLogits, SomeQueries, ZeroHead
from service.errors import ImageError
from service.labels.registered_sets import LearntLabel
from service.labels.sources.examples import Example, Examples
from service.labels.whitening import Vector, Whitening
from service.pipeline.pipeline import Pipeline
from service.pipeline.scoring import score_labels
from service.pipeline.selection import select_labels
from service.question import Question
from service.scheduling.tasks import collect_in_order

_ADVICE = (
    f"A threshold needs at least {MIN_POSITIVES} photos that show the label, and some that do not."
)
# Below a separation of 1 the examples change next to nothing.
_WEAK_ADVICE = "The photos have little in common: send more, or cut out the thing that they show."


async def learn_label(  # noqa: PLR0913 - the photos of both kinds, and how to write
    pipeline: Pipeline,
    name: str,
    label: str,
    positive: Sequence[bytes],
    negative: Sequence[bytes],
    *,
    replace: bool = False,
    if_version: int | None = None,
) -> tuple[LearntLabel, list[float], list[float]]:
    """Adds photos, at least one, to the examples of a label; `replace` removes its others.

    Returns the scores of the photos of both kinds now too, in their order. A set or label that is
    missing is made. Raises as `Catalogue.for_learning`, `RegisteredSets.learn` and
    `Pipeline.predict`; one unusable photo fails all, and nothing is written. The caller admits it.
    """
    sets, whitening = pipeline.catalogue.for_learning(name)
    prepared = await sets.prepare_labels(name, [label])
    queries = prepared.queries
    head = ZeroHead(1) if queries is None else SomeQueries(queries, np.zeros(1, np.intp))
    deadline = pipeline.make_deadline()

    async def read(photo: bytes, what: str) -> tuple[LogitsArray | ScreenedLogits, Vector, Example]:
        try:
            embedding, (logits,) = await pipeline.embed(photo, deadline, head)
        except ImageError as error:
            error.detail = ": ".join(filter(None, (what, error.detail)))
            raise
        return logits, embedding, await make_example(photo, embedding, whitening)

    works = (
        read(photo, f"Photo {number} of {len(contents)} `{kind}` photos")
        for kind, contents in (("positive", positive), ("negative", negative))
        for number, photo in enumerate(contents, start=1)
    )
    photos = await collect_in_order(works, pipeline.concurrency)
    examples, middle = [example for _, _, example in photos], len(positive)
    learnt = await sets.learn(
        *(name, label, prepared, examples[:middle], examples[middle:]),
        replace=replace,
        if_version=if_version,
    )
    question = Question(label_set=[name], include=[label], top_k=1)
    selection = select_labels([learnt.labels], question)
    scores = [score_labels([logits], selection, f)[0].score for logits, f, _ in photos]
    return learnt, scores[:middle], scores[middle:]


async def make_example(photo: bytes, embedding: Vector, whitening: Whitening) -> Example:
    """Returns what a label learns of a photo with this embedding [D]."""
    digest = await asyncio.to_thread(lambda: hashlib.sha256(photo).digest())
    return Example(digest, whitening.whiten(embedding[np.newaxis])[0])


def describe_learnt(result: LearntLabel, label: str) -> dict[str, Any]:
    """Returns what a label has learnt, as JSON values."""
    labels, learnt = result.labels, result.labels.learnt
    position = labels.positions[label]
    assert learnt is not None, "the label has learnt"
    taught = learnt.taught[int(learnt.positions.searchsorted(position))]
    examples = {**taught[Examples.kind].described}
    separation = examples.pop("separation")
    del examples["this_model"]
    enough = examples["negative"] and examples["positive"] >= MIN_POSITIVES
    advice = None if enough else _ADVICE
    if examples["positive"] and separation["value"] < 1:
        advice = _WEAK_ADVICE
    return {
        "label_set": {"name": labels.name, "version": labels.version},
        "label": label,
        "examples": {**examples, "added": result.added, "repeated": result.repeated},
        "separation": separation,
        "threshold": float(labels.thresholds[position]),
        "calibrated": bool(labels.calibrated[position]),
        "advice": advice,
    }
