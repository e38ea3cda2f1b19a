"""Tests of teaching: photos become examples together or not at all, and the label is found."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest

from service.bundle.card import BackgroundPhotos
from service.bundle.reader import Bundle
from service.bundle.writer import BundleDraft
from service.engine.engine import open_engine
from service.errors import EmptyImage, InvalidImage, NoBackground
from service.labels.background import MIN_PHOTOS, fit_background
from service.pipeline.pipeline import Pipeline
from service.pipeline.teaching import Taught, embed_photo, teach_label
from service.question import Question
from tests.service.pipeline.conftest import running
from tests.support.photos import make_photo
from tests.support.tiny_bundle import (
    TINY_LABELS,
    open_card,
    open_draft,
    random_images,
    tiny_card,
    tiny_graphs,
    write_draft,
)

pytestmark = pytest.mark.anyio

PHOTOS = [make_photo(seed, "JPEG") for seed in range(12)]


def write_teachable(folder: pytest.TempPathFactory, draft: BundleDraft) -> Bundle:
    """Writes a bundle with the background of random images."""
    plain = write_draft(folder.mktemp("plain"), draft)
    images = random_images(0, MIN_PHOTOS)
    results = open_engine(plain, device="cpu").run(
        images, [[]] * MIN_PHOTOS, embedded=range(MIN_PHOTOS)
    )
    found = [each.embedding for each in results if each.embedding is not None]
    background = fit_background(np.stack(found))
    photos = BackgroundPhotos(dataset="random", images=MIN_PHOTOS)
    card = draft.card.model_copy(update={"background": photos})
    return write_draft(
        folder.mktemp("taught"), replace(draft, card=card, background=background.to_bytes())
    )


@pytest.fixture(scope="module", params=["texts", "no text encoder", "no open head"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    drafts = {
        "texts": open_draft(),
        "no text encoder": open_draft(open_card(), encodes_text=False),
        "no open head": BundleDraft(tiny_card(), TINY_LABELS, tiny_graphs()),
    }
    return write_teachable(tmp_path_factory, drafts[request.param])


@pytest.fixture
async def pipeline(bundle: Bundle) -> AsyncIterator[Pipeline]:
    async with running(bundle) as pipeline:
        yield pipeline


async def teach(pipeline: Pipeline, *positive: bytes, label: str = "mug") -> Taught:
    return await teach_label(pipeline, "mine", label, positive, PHOTOS[10:])


async def test_taught_label_is_found_with_the_scores_that_teaching_answers(
    pipeline: Pipeline,
) -> None:
    taught = await teach(pipeline, *PHOTOS[:3], PHOTOS[0])
    assert (taught.created, taught.added, taught.repeated) == (True, 5, 1)
    assert len(taught.positive) == 4
    question = Question(label_set=["mine"], top_k=1, embedding=True)
    selection = await pipeline.select(question)
    scores = [*taught.positive, *taught.negative]
    for photo, score in zip((*PHOTOS[:3], PHOTOS[0], *PHOTOS[10:]), scores, strict=True):
        found = await pipeline.predict(photo, selection)
        assert (found.labels[0].label, found.labels[0].source) == ("mug", "examples")
        assert found.labels[0].score == pytest.approx(score, abs=1e-5)
        embedding = await embed_photo(pipeline, photo, pipeline.make_deadline())
        np.testing.assert_allclose(embedding, found.embedding, atol=1e-5)
    assert taught.labels.source == ("zero_shot" if "everyday" in names(pipeline) else "examples")


async def test_one_unusable_photo_of_several_is_named_and_nothing_is_kept(
    pipeline: Pipeline,
) -> None:
    for bad, error in ((b"junk", InvalidImage), (b"", EmptyImage)):
        for positive, negative, start in (
            ([*PHOTOS[:3], bad, *PHOTOS[4:9]], PHOTOS[10:], "Photo 4 of 9 `positive` photos"),
            (PHOTOS[:3], [bad], "Photo 1 of 1 `negative` photos"),
        ):
            with pytest.raises(error) as caught:
                await teach_label(pipeline, "mine", "mug", positive, negative)
            assert str(caught.value.detail).startswith(start)
            assert "mine" not in names(pipeline)
    assert (await teach(pipeline, *PHOTOS[:3])).added == 5


async def test_labels_that_are_taught_at_the_same_time_lose_nothing(pipeline: Pipeline) -> None:
    works = [teach(pipeline, *PHOTOS[i : i + 2]) for i in range(0, 8, 2)]
    others = [teach(pipeline, PHOTOS[8], label="cup")]
    await asyncio.gather(*works, *others)
    lessons = pipeline.catalogue.find("mine").lessons
    counts = {name: (e.positive.count, e.negative.count) for name, e in lessons.items()}
    assert counts == {"mug": (8, 2), "cup": (1, 2)}


async def test_bundle_without_background_does_not_learn(open_bundle: Bundle) -> None:
    async with running(open_bundle) as pipeline:
        with pytest.raises(NoBackground):
            await teach(pipeline, PHOTOS[0])


def names(pipeline: Pipeline) -> set[str]:
    return {labels.name for labels in pipeline.catalogue.list_sets()}
