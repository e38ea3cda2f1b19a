"""Tests of a worker's batch: an invalid photo fails alone, a broken engine ends the service."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.bundle.reader import Bundle
from service.engine.engine import Engine, open_engine
from service.errors import InferenceFailed, InvalidImage, OutOfMemory, ServiceBroken, TooManyPixels
from service.images.decode import DecodedImage, decode_image
from service.pipeline.worker import Inference, Item, Result
from tests.service.pipeline.conftest import Recorder
from tests.support.photos import make_photo

MAX_PIXELS = 48 * 32


@pytest.fixture(scope="module")
def engine(tiny_bundle: Bundle) -> Engine:
    return open_engine(tiny_bundle, device="cpu", threads=1)


@pytest.fixture
def inference(engine: Engine, tiny_bundle: Bundle) -> Inference:
    return Inference(engine, tiny_bundle.card.input, MAX_PIXELS)


@pytest.fixture
def decoded(tiny_bundle: Bundle) -> DecodedImage:
    return decode_image(make_photo(1), tiny_bundle.card.input, MAX_PIXELS)


def make_item(photo: bytes | DecodedImage) -> Item:
    return Item(photo, (None,), explained=False)


def run(inference: Inference, *photos: bytes | DecodedImage) -> list[Result | Exception]:
    return inference.run([make_item(photo) for photo in photos], lambda: False)


def test_file_and_its_pixels_get_the_same_logits(
    inference: Inference, decoded: DecodedImage
) -> None:
    from_file, from_pixels = run(inference, make_photo(1), decoded)
    assert isinstance(from_file, Result)
    assert isinstance(from_pixels, Result)
    np.testing.assert_array_equal(from_file.logits[0], from_pixels.logits[0])
    assert (from_file.image.width, from_file.image.height) == (48, 32)
    assert [stage.name for stage in from_file.stages] == ["decode", "encode", "head"]
    assert [stage.name for stage in from_pixels.stages] == ["encode", "head"]


def test_invalid_photos_fail_alone(
    engine: Engine, tiny_bundle: Bundle, decoded: DecodedImage
) -> None:
    recorder = Recorder()
    inference = Inference(engine, tiny_bundle.card.input, MAX_PIXELS, [recorder])
    huge = make_photo(2, width=49)
    found = run(inference, b"junk", make_photo(1), huge, decoded)
    assert [type(each) for each in found] == [InvalidImage, Result, TooManyPixels, Result]
    assert recorder.batches == [2]
    (good,) = run(inference, decoded)
    assert isinstance(good, Result)


def test_engine_does_not_run_without_a_valid_photo(
    inference: Inference, engine: Engine, monkeypatch: pytest.MonkeyPatch, decoded: DecodedImage
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(engine, "run", None)
        (found,) = run(inference, b"junk")
    assert isinstance(found, InvalidImage)
    assert isinstance(run(inference, decoded)[0], Result)


@pytest.mark.parametrize("alone", [False, True])
def test_engine_gets_whether_the_batch_is_alone(
    inference: Inference, engine: Engine, monkeypatch: pytest.MonkeyPatch, *, alone: bool
) -> None:
    told = []
    run_engine = engine.run

    def run_and_remember(*arguments: Any, **options: Any) -> Any:
        told.append(options["alone"])
        return run_engine(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "run", run_and_remember)
        inference.run([make_item(make_photo(1))], lambda: alone)
    assert told == [alone]


class Failures:
    """An engine's `run` that first fails with some errors."""

    def __init__(self, engine: Engine, *errors: Exception) -> None:
        self.left = list(errors)
        self._run = engine.run

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self.left:
            raise self.left.pop(0)
        return self._run(*arguments, **options)


def test_engine_is_not_tried_out_when_memory_is_short(
    inference: Inference, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = InferenceFailed("another batch")
    failures = Failures(engine, OutOfMemory("too much"), later)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "run", failures)
        with pytest.raises(OutOfMemory):
            run(inference, make_photo(1))
    assert failures.left == [later]
    assert isinstance(run(inference, make_photo(1))[0], Result)


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ([InferenceFailed("this batch")], InferenceFailed),
        ([OutOfMemory("too much")], OutOfMemory),
        ([InferenceFailed("this batch"), OutOfMemory("for a moment")], InferenceFailed),
        ([InferenceFailed("this batch"), InferenceFailed("anything")], ServiceBroken),
    ],
)
def test_failure_fails_the_batch_and_ends_the_service_if_the_engine_cannot_run_at_all(
    inference: Inference,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    errors: list[Exception],
    raised: type[Exception],
) -> None:
    failures = Failures(engine, *errors)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "run", failures)
        with pytest.raises(raised) as caught:
            run(inference, b"junk", make_photo(1))
    assert type(caught.value) is raised
    assert failures.left == []
    assert isinstance(run(inference, make_photo(1))[0], Result)
