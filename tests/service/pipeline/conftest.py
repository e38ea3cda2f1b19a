"""Shared by the tests of the pipeline: a running pipeline, and an observer that records calls."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from service.bundle.reader import Bundle
from service.labels.label_set import LabelSet
from service.labels.sources.examples import Example, Examples
from service.labels.sources.learnt import LearntLabels
from service.labels.sources.source import Taught
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.settings import Settings
from service.stages import Stage
from tests.support.tiny_bundle import WIDTH


def make_settings(bundle: Bundle, **values: Any) -> Settings:
    defaults: dict[str, Any] = {
        **{"device": "cpu", "label_store": "memory"},
        **{"intra_op_threads": 2, "decode_threads": 2},
    }
    return Settings(bundle=bundle.path, **(defaults | values))


@asynccontextmanager
async def running(bundle: Bundle, **values: Any) -> AsyncIterator[Pipeline]:
    pipeline = open_pipeline(make_settings(bundle, **values))
    await pipeline.start()
    try:
        yield pipeline
    finally:
        await pipeline.drain()


def make_learnt(labels: LabelSet, *names: str, shift: float = 0.0) -> LabelSet:
    """Returns the set, some of whose labels have learnt random directions from one photo each."""
    positions = np.array(sorted(labels.positions[name] for name in names), np.intp)
    vectors = np.random.default_rng(5).normal(size=(len(names), WIDTH)).astype(np.float32)
    examples = [Examples.empty(WIDTH).add([Example(b"1" * 32, vector)]) for vector in vectors]
    pairs = zip(examples, vectors, strict=True)
    taught = tuple({"examples": Taught(each, vector, shift, {})} for each, vector in pairs)
    shifts = np.full(len(names), shift)
    return replace(labels, learnt=LearntLabels(positions, taught, vectors, shifts))


class Recorder:
    """A observer that notes batch sizes, and the names of each photo's stages."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.predictions: list[list[str]] = []

    def on_batch(self, size: int, seconds: float) -> None:
        assert seconds > 0
        self.batches.append(size)

    def on_prediction(self, stages: Sequence[Stage], batch_size: int) -> None:
        assert batch_size in self.batches
        assert all(a.ended <= b.started for a, b in pairwise(stages))
        self.predictions.append([stage.name for stage in stages])
