"""Tests of learning: photos become examples together or not at all, and the label is found."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.bundle.reader import Bundle
from service.errors import BundleError
from service.labels.registered_sets import LearntLabel
from service.pipeline.learning import learn_label
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.question import Question
from tests.service.pipeline.conftest import make_settings, running
from tests.support.label_store import make_photos
from tests.support.photos import make_photo
from tests.support.tiny_bundle import (
    WIDTH,
    open_draft,
    tiny_draft,
    write_draft,
    write_learning_bundle,
)

pytestmark = pytest.mark.anyio

PHOTOS = [make_photo(seed, "JPEG") for seed in range(12)]


@pytest.fixture(scope="module", params=["texts", "no text encoder", "no open head"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    draft = {
        "texts": open_draft(),
        "no text encoder": open_draft(encodes_text=False),
        "no open head": tiny_draft(),
    }[request.param]
    return write_learning_bundle(tmp_path_factory.mktemp("learnt"), draft)


@pytest.fixture
async def pipeline(bundle: Bundle) -> AsyncIterator[Pipeline]:
    async with running(bundle) as pipeline:
        yield pipeline


async def learn(pipeline: Pipeline, *positive: bytes) -> tuple[LearntLabel, list[float]]:
    learnt, with_label, without = await learn_label(pipeline, "mine", "mug", positive, PHOTOS[10:])
    return learnt, [*with_label, *without]


async def test_learnt_label_has_the_scores_that_were_answered(pipeline: Pipeline) -> None:
    photos = [*PHOTOS[:3], PHOTOS[0], *PHOTOS[10:]]
    learnt, scores = await learn(pipeline, *photos[:4])
    assert (learnt.created, learnt.added, learnt.repeated) == (True, 5, 1)
    selection = await pipeline.select(Question(label_set=["mine"], top_k=1, embedding=True))
    for photo, score in zip(photos, scores, strict=True):
        found = await pipeline.predict(photo, selection)
        assert (found.labels[0].label, found.labels[0].source) == ("mug", "examples")
        assert found.labels[0].score == pytest.approx(score, abs=1e-5)
        embedding, _ = await pipeline.embed(photo, pipeline.make_deadline())
        np.testing.assert_allclose(embedding, found.embedding, atol=1e-5)  # type: ignore[arg-type]


async def test_background_of_another_width_is_refused_at_the_start(tmp_path: Path) -> None:
    background = make_photos(width=WIDTH + 1).whitening
    bundle = write_draft(tmp_path, replace(open_draft(), background=background.to_bytes()))
    with pytest.raises(BundleError, match=f"width {WIDTH + 1}, the encoder of {WIDTH}"):
        open_pipeline(make_settings(bundle))
