"""Tests of a worker's batch: an invalid photo fails alone, a broken engine ends the service."""

from unittest.mock import DEFAULT, Mock, patch

import numpy as np
import pytest

from service.bundle.reader import Bundle
from service.engine.engine import Engine, open_engine
from service.engine.heads import TRAINED_HEAD
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
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def inference(engine: Engine, tiny_bundle: Bundle, recorder: Recorder) -> Inference:
    return Inference(engine, tiny_bundle.card.input, MAX_PIXELS, [recorder])


@pytest.fixture
def decoded(tiny_bundle: Bundle) -> DecodedImage:
    return decode_image(make_photo(1), tiny_bundle.card.input, MAX_PIXELS)


def run(
    inference: Inference, *photos: bytes | DecodedImage, alone: bool = False
) -> list[Result | Exception]:
    return inference.run(
        [Item(each, (TRAINED_HEAD,), explained=False) for each in photos], lambda: alone
    )


def test_file_and_its_pixels_get_the_same_logits(
    inference: Inference, decoded: DecodedImage
) -> None:
    from_file, from_pixels = run(inference, make_photo(1), decoded)
    assert isinstance(from_file, Result)
    assert isinstance(from_pixels, Result)
    np.testing.assert_array_equal(from_file.output.logits[0], from_pixels.output.logits[0])
    assert (from_file.image.width, from_file.image.height) == (48, 32)
    assert [stage.name for stage in from_file.stages] == ["decode", "encode", "head"]
    assert [stage.name for stage in from_pixels.stages] == ["encode", "head"]


def test_invalid_photos_fail_alone(
    inference: Inference, engine: Engine, decoded: DecodedImage, recorder: Recorder
) -> None:
    found = run(inference, b"junk", make_photo(1), make_photo(2, width=49), decoded)
    assert [type(each) for each in found] == [InvalidImage, Result, TooManyPixels, Result]
    assert recorder.batches == [2]
    with patch.object(engine, "run", None):  # not called without a valid photo
        assert isinstance(run(inference, b"junk")[0], InvalidImage)


@pytest.mark.parametrize("alone", [False, True])
def test_engine_gets_whether_it_may_use_all_threads(
    inference: Inference, engine: Engine, *, alone: bool
) -> None:
    with patch.object(engine, "run", wraps=engine.run) as run_engine:
        run(inference, make_photo(1), alone=alone)
    assert run_engine.call_args.kwargs["alone"] is alone


@pytest.mark.parametrize(
    ("errors", "runs", "raised"),
    [
        ([InferenceFailed("this batch")], 2, InferenceFailed),
        ([OutOfMemory("too much")], 1, OutOfMemory),
        ([InferenceFailed("this batch"), OutOfMemory("for a moment")], 2, InferenceFailed),
        ([InferenceFailed("this batch"), InferenceFailed("anything")], 2, ServiceBroken),
    ],
)
def test_failure_fails_the_batch_and_ends_the_service_if_the_engine_cannot_run_at_all(
    inference: Inference,
    engine: Engine,
    errors: list[Exception],
    runs: int,
    raised: type[Exception],
) -> None:
    failing = Mock(wraps=engine.run, side_effect=[*errors, DEFAULT])
    with patch.object(engine, "run", failing), pytest.raises(raised) as caught:
        run(inference, b"junk", make_photo(1))
    assert type(caught.value) is raised
    assert failing.call_count == runs
    assert isinstance(run(inference, make_photo(1))[0], Result)
