"""Answers with a screen equal those without one; questions that need all labels do not take it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest

from service.bundle.reader import Bundle
from service.caller import Caller
from service.engine.heads import ScreenedQueries, SomeQueries
from service.labels.definition import Definition
from service.pipeline import pipeline as pipeline_module
from service.pipeline.pipeline import Pipeline
from service.pipeline.selection import select_labels
from service.question import Question
from service.scheduling.queue import LONG_WEIGHT, BatchQueue
from tests.service.pipeline.conftest import make_learnt, running
from tests.support.photos import make_photo
from tests.support.tiny_bundle import EMBEDDING_WIDTH, tiny_screened_head, write_screened_bundle

pytestmark = pytest.mark.anyio

LABELS = 300
NAMES = tuple(f"label {i}" for i in range(LABELS))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_screened_bundle(tmp_path_factory.mktemp("screened"))


MANY = Definition(
    name="many",
    names=NAMES,
    prompts=(None,) * LABELS,
    thresholds=tuple(0.3 if i % 3 else None for i in range(LABELS)),
    given=tuple(range(LABELS)),
    embeddings=np.random.default_rng(0).normal(size=(LABELS, EMBEDDING_WIDTH)).astype(np.float32),
)


@pytest.fixture
async def pipelines(bundle: Bundle) -> AsyncIterator[tuple[Pipeline, Pipeline]]:
    """Yields a pipeline with the screen and one without, with the same labels."""
    async with running(bundle) as screened, running(bundle, screen=False) as full:
        for pipeline in (screened, full):
            await pipeline.catalogue.writable("many").register(MANY)
        yield screened, full


QUESTIONS: list[dict[str, Any]] = [
    {},
    {"top_k": 3},
    {"top_k": 50},
    {"min_labels": 1},
    {"min_labels": 50},
    {"threshold": 0.9, "min_labels": 20},
    {"threshold": "balanced", "min_labels": 20},
    {"threshold": 0.9},
    {"threshold": 0.999999},
    {"threshold": "calibrated", "top_k": 5},
    {"threshold": "balanced"},
    {"threshold": "recall", "top_k": 5},
    {"threshold": 0.01, "top_k": 70},
    {"exclude": list(NAMES[:20])},
    {"exclude": list(NAMES[100:120]), "top_k": 30},
    {"label_set": ("trained", "many"), "top_k": 12},
]


async def test_answer_equals_that_of_the_open_head(pipelines: tuple[Pipeline, Pipeline]) -> None:
    for values in QUESTIONS:
        question = Question(**{"label_set": ("many",), **values})
        answers = []
        for pipeline in pipelines:
            selection = await pipeline.select(question)
            heads = [type(part.head) for part in selection.parts if part.labels.name == "many"]
            assert (heads == [ScreenedQueries]) == (pipeline is pipelines[0])
            photos = [pipeline.predict(make_photo(seed), selection) for seed in range(6)]
            answers.append(await asyncio.gather(*photos))
        for found, wanted in zip(*answers, strict=True):
            assert [label[:1] + label[2:] for label in found.labels] == [
                label[:1] + label[2:] for label in wanted.labels
            ]
            scores = [label.score for label in wanted.labels]
            assert [label.score for label in found.labels] == pytest.approx(scores, abs=1e-6)


@pytest.mark.parametrize("shift", [24.0, -50.0])
async def test_learnt_labels_are_never_left_out_and_leave_room_for_others(
    pipelines: tuple[Pipeline, Pipeline], shift: float
) -> None:
    question, answers = Question(label_set=("many",), top_k=20), []
    for pipeline in pipelines:
        (labels,) = (await pipeline.select(question)).sets
        low = np.stack([np.ones(LABELS), np.full(LABELS, -20.0)])  # no text reaches a score of 0.5
        learnt = replace(make_learnt(labels, *NAMES[::20], shift=shift), calibration=low)
        for values in ({}, {"exclude": (NAMES[0],)}, {"top_k": None, "threshold": 0.99}):
            selection = select_labels([learnt], question.model_copy(update=values))
            screened = isinstance(selection.heads[0], ScreenedQueries)
            assert screened == (pipeline is pipelines[0])
            answers.append((await pipeline.predict(make_photo(0), selection)).labels)
    for found, wanted in zip(answers[:3], answers[3:], strict=True):
        assert [(x.label, x.source) for x in found] == [(x.label, x.source) for x in wanted]
        assert (sum(label.source == "examples" for label in found) > 3) == (shift > 0)


async def test_question_that_may_need_most_labels_takes_the_open_head(
    pipelines: tuple[Pipeline, Pipeline],
) -> None:
    for values in (
        {"threshold": 0.0},
        {"top_k": LABELS},
        {"top_k": 61},  # more than a fifth
        {"include": list(NAMES[:200])},
        {"include": list(NAMES[:3])},
        {"exclude": list(NAMES[:110])},
    ):
        selection = await pipelines[0].select(Question(**{"label_set": ("many",), **values}))
        assert not isinstance(selection.heads[0], ScreenedQueries)
        answer = await pipelines[0].predict(make_photo(0), selection)
        assert len(answer.labels) >= 3
    for question in (Question(candidate_labels=["cat", "dog"]), Question(label_set=("trained",))):
        selection = await pipelines[0].select(question)
        assert not isinstance(selection.heads[0], ScreenedQueries | SomeQueries)


async def test_long_photo_waits_apart_and_counts_by_its_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write_screened_bundle(tmp_path, screened_head=tiny_screened_head(most=50))
    monkeypatch.setattr(pipeline_module, "_WEIGHT_LABELS", 10)
    monkeypatch.setattr("service.caller.UNIT_LABELS", 120)
    put = Mock(wraps=BatchQueue.put)
    monkeypatch.setattr(BatchQueue, "put", lambda *given, **options: put(*given, **options))
    charge = Mock()
    monkeypatch.setattr(Caller, "charge", charge)
    async with running(small) as screened, running(small, screen=False) as full:
        for pipeline in (screened, full):
            await pipeline.catalogue.writable("many").register(MANY)
        for name in ("_shared", "_all_threads"):
            sessions = replace(getattr(screened.engine, name), long_labels=120)
            monkeypatch.setattr(screened.engine, name, sessions)
        for values, are_long in (
            ({"threshold": 0.0}, [True]),
            ({"threshold": 1e-9}, [False, True]),  # the screen finds that it needs them all
            ({"threshold": 1e-9, "explain": True}, [False, True]),
            ({"threshold": 0.999999}, [False]),
        ):
            question, answers = Question(label_set=("many",), **values), []
            for pipeline in (full, screened):
                put.reset_mock()
                charge.reset_mock()
                selection = await pipeline.select(question)
                answers.append(await pipeline.predict(make_photo(0), selection))
            assert [one.args[-1] > LONG_WEIGHT for one in put.call_args_list] == are_long
            assert charge.call_args_list == ([call(299 // 120)] if are_long[-1] else [])
            assert answers[0].labels == answers[1].labels
            assert len(answers[0].explanations) == len(answers[1].explanations)


async def test_screened_answer_has_maps(pipelines: tuple[Pipeline, Pipeline]) -> None:
    question = Question(label_set=("many",), top_k=4, explain=True)
    found, wanted = [
        await pipeline.predict(make_photo(0), await pipeline.select(question))
        for pipeline in pipelines
    ]
    for one, other in zip(found.explanations, wanted.explanations, strict=True):
        np.testing.assert_allclose(one.map, other.map, atol=1e-5)


async def test_two_replicas_of_one_store_need_no_keys_in_it(tmp_path: Path, bundle: Bundle) -> None:
    url = str(tmp_path / "labels.db")
    async with running(bundle, label_store=url, screen=False) as old:
        await old.catalogue.writable("many").register(MANY)
    async with running(bundle, label_store=url) as new:
        selection = await new.select(Question(label_set=("many",)))
        assert isinstance(selection.heads[0], ScreenedQueries)
