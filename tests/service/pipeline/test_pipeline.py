"""Tests of the pipeline: after each failure, the next photo is answered."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray

from service import errors
from service.bundle.card import Device
from service.bundle.reader import Bundle
from service.engine.engine import Engine
from service.pipeline import pipeline as pipeline_module
from service.pipeline import worker as worker_module
from service.pipeline.explanation import Explainer
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.pipeline.prediction import Prediction
from service.pipeline.scoring import score_labels
from service.pipeline.selection import select_labels
from service.question import Question
from service.scheduling.cpu import list_cores
from service.scheduling.queue import BatchQueue, BatchSizes, DrainRate
from service.scheduling.tasks import run_together
from tests.service.pipeline.conftest import Recorder, make_settings, running
from tests.support.photos import encode_picture, make_photo, make_picture
from tests.support.threads import Gate
from tests.support.tiny_bundle import TINY_LABELS

pytestmark = pytest.mark.anyio

ALL = Question(top_k=len(TINY_LABELS))
# Scores of a batch's row and of the same image alone differ by float32 rounding at most.
TOLERANCE = 1e-5


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A gate before photos are decoded in side threads."""
    return Gate(monkeypatch, pipeline_module, "decode_image")


@pytest.fixture
async def pipeline(tiny_bundle: Bundle) -> AsyncIterator[Pipeline]:
    async with running(tiny_bundle) as pipeline:
        yield pipeline


async def predict(pipeline: Pipeline, data: bytes, question: Question = ALL) -> Prediction:
    return await pipeline.predict(data, await pipeline.select(question))


def get_scores(prediction: Prediction) -> dict[str, float]:
    return {label.label: label.score for label in prediction.labels}


async def predict_scores(pipeline: Pipeline, seed: int) -> dict[str, float]:
    return get_scores(await predict(pipeline, make_photo(seed)))


async def assert_good_photo_is_answered(pipeline: Pipeline) -> None:
    assert len(await predict_scores(pipeline, 0)) == len(TINY_LABELS)
    assert pipeline.state == "ready"


# The worker decodes a small JPEG; what may take longer is decoded before it is queued.
@pytest.mark.parametrize(
    ("file_format", "stages"),
    [
        ("PNG", ["decode", "queue", "encode", "head"]),
        ("JPEG", ["queue", "decode", "encode", "head"]),
    ],
)
async def test_prediction_has_size_labels_and_times_and_observers_get_its_stages(
    pipeline: Pipeline, file_format: str, stages: list[str]
) -> None:
    recorder = Recorder()
    pipeline.observers.append(recorder)
    photos = [make_photo(seed, file_format) for seed in range(6)]
    for prediction in await asyncio.gather(*(predict(pipeline, photo) for photo in photos)):
        assert (prediction.width, prediction.height) == (48, 32)
        assert get_scores(prediction).keys() == {label.name for label in TINY_LABELS}
        times = prediction.timings
        assert min(times.decode_ms, times.inference_ms) > 0
        assert times.queue_ms >= 0
        assert times.total_ms >= times.decode_ms + times.queue_ms + times.inference_ms
    with pytest.raises(errors.InvalidImage):
        await predict(pipeline, photos[0][: len(photos[0]) // 2])
    assert sum(recorder.batches) == 6
    assert recorder.predictions == [stages] * 6


async def test_scores_do_not_depend_on_concurrent_requests(pipeline: Pipeline) -> None:
    alone = [await predict_scores(pipeline, seed) for seed in range(20)]
    recorder = Recorder()
    pipeline.observers.append(recorder)
    together = await asyncio.gather(*(predict_scores(pipeline, seed) for seed in range(20)))
    assert sum(recorder.batches) == 20
    assert max(recorder.batches) > 1, "nothing was batched"
    for mine, expected in zip(together, alone, strict=True):
        assert mine == pytest.approx(expected, abs=TOLERANCE)
    assert len({round(scores["cat"], 4) for scores in alone}) == 20, "photos have to differ"


MANY = [f"unicorn {number}" for number in range(5000)]
WORK: list[tuple[str, dict[str, Any], bool]] = [
    ("select_labels", {"exclude": MANY}, True),
    ("select_labels", {"exclude": [f"{n:04}".ljust(200) for n in range(50)]}, True),
    ("select_labels", {"exclude": MANY[:9]}, False),
    ("select_labels", {"candidate_labels": MANY[:2001]}, True),
    ("score_labels", {"candidate_labels": MANY[:2001]}, True),
    ("score_labels", {"candidate_labels": MANY[:2000]}, False),
]


async def test_work_on_many_or_long_names_and_on_many_labels_runs_in_a_side_thread(
    open_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, threading.Thread] = {}

    def note_and_call(function: Any, *arguments: Any) -> Any:
        threads[function.__name__] = threading.current_thread()
        return function(*arguments)

    for function in (select_labels, score_labels):
        name = function.__name__
        monkeypatch.setattr(pipeline_module, name, partial(note_and_call, function))
    async with running(open_bundle, max_candidate_labels=3000) as pipeline:
        for name, values, is_long in WORK:
            with suppress(errors.UnknownLabel):
                await predict(pipeline, make_photo(0), Question(top_k=1, **values))
            assert (threads[name] is not threading.current_thread()) == is_long


async def test_drain_rate_counts_answers_and_damaged_photos_and_workers_are_pinned(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate, listed = Mock(wraps=DrainRate()), Mock(wraps=list_cores)
    monkeypatch.setattr("service.scheduling.queue.DrainRate", lambda: rate)
    monkeypatch.setattr(pipeline_module, "list_cores", listed)
    async with running(tiny_bundle, queue_size=7) as pipeline:
        selection = await pipeline.select(ALL)
        rate.reset_mock()
        await asyncio.gather(*(pipeline.predict(make_photo(seed), selection) for seed in range(2)))
        with pytest.raises(errors.InvalidImage):
            await pipeline.predict(b"junk", selection)
        pipeline.queue.estimate_wait()
    assert [name for name, _, _ in rate.method_calls] == [
        *("note_start", "note_answer", "note_answer"),
        *("note_start", "note_answer", "estimate_seconds"),
    ]
    assert rate.estimate_seconds.call_args.args[0] == 7
    listed.assert_called_once_with(2, pin=True)  # workers of a CPU


async def test_refused_request_is_freed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchQueue, "is_full", True)
    queue: BatchQueue[object, object] = BatchQueue(1, BatchSizes(1, 1))

    def refuse(photo: NDArray[np.uint8]) -> None:
        with suppress(errors.QueueFull):
            queue.check_room()
        assert photo.size

    gc.disable()
    try:
        photo = np.zeros(9, np.uint8)
        kept = weakref.ref(photo)
        refuse(photo)
        del photo
        assert kept() is None
    finally:
        gc.enable()


async def test_invalid_photos_leave_no_garbage(pipeline: Pipeline) -> None:
    damaged = encode_picture(make_picture(0), "JPEG")[:300]
    selection = await pipeline.select(ALL)

    async def fail() -> None:
        with pytest.raises(errors.InvalidImage):
            await pipeline.predict(damaged, selection)
        with pytest.raises(errors.InvalidImage):
            await run_together(pipeline.predict(damaged, selection) for _ in range(3))

    await fail()  # fills the caches
    gc.collect()
    gc.disable()
    try:
        await fail()
        assert gc.collect() == 0
    finally:
        gc.enable()


async def test_maps_count_as_waiting_and_end_at_the_deadline(
    mapped_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, Explainer, "explain_labels")
    async with running(mapped_bundle, queue_size=1, deadline_ms=400) as pipeline:
        selection = await pipeline.select(Question(top_k=1, explain=True))
        asked = asyncio.create_task(pipeline.predict(make_photo(0), selection))
        await gate.wait_for_arrival()
        assert pipeline.queue.is_full
        with pytest.raises(errors.DeadlineExceeded):
            await asked
        assert not pipeline.queue.is_full
        gate.open()


async def test_burst_over_the_queue_is_refused_before_it_is_decoded(
    tiny_bundle: Bundle, decoding: Gate
) -> None:
    async with running(tiny_bundle, queue_size=3, decode_threads=1) as pipeline:
        taken = [asyncio.create_task(predict_scores(pipeline, seed)) for seed in range(3)]
        await decoding.wait_for_arrival()
        await decoding.wait_for_arrival()  # both threads are busy; the third waits
        with pytest.raises(errors.QueueFull) as caught:
            await predict(pipeline, make_photo(9))
        assert caught.value.retry_after_seconds == 1  # the queue is not older
        assert decoding.arrivals == 2
        decoding.open()
        assert len(await asyncio.gather(*taken)) == 3
        await assert_good_photo_is_answered(pipeline)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG"])
@pytest.mark.parametrize("stage", ["decode", "run"])
async def test_deadline_covers_decoding_and_the_queue(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, file_format: str, stage: str
) -> None:
    async with running(tiny_bundle, deadline_ms=30) as pipeline:
        module = pipeline_module if file_format == "PNG" else worker_module
        owner, name = (Engine, "run") if stage == "run" else (module, "decode_image")
        gate = Gate(monkeypatch, owner, name)
        with pytest.raises(errors.DeadlineExceeded):
            await predict(pipeline, make_photo(0, file_format))
        gate.open()


async def test_photo_is_not_run_after_its_deadline(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection, passed = await pipeline.select(ALL), asyncio.get_running_loop().time()
    gate = Gate(monkeypatch, Engine, "run")
    gate.open()
    for file_format in ("PNG", "JPEG"):
        with pytest.raises(errors.DeadlineExceeded):
            await pipeline.predict(make_photo(0, file_format), selection, passed)
    assert gate.arrivals == 0
    await assert_good_photo_is_answered(pipeline)


async def test_cancelled_request_frees_its_place_while_decoding(
    tiny_bundle: Bundle, decoding: Gate
) -> None:
    async with running(tiny_bundle, queue_size=1) as pipeline:
        leaves = asyncio.create_task(predict_scores(pipeline, 0))
        await decoding.wait_for_arrival()
        leaves.cancel()
        await asyncio.wait([leaves])
        decoding.open()
        await assert_good_photo_is_answered(pipeline)


async def test_pipeline_refuses_requests_before_start_and_after_drain(tiny_bundle: Bundle) -> None:
    pipeline = open_pipeline(make_settings(tiny_bundle))
    assert pipeline.state == "loading"
    with pytest.raises(errors.NotReady):
        await predict(pipeline, make_photo(0))
    await pipeline.start()
    await assert_good_photo_is_answered(pipeline)
    await pipeline.drain()
    assert pipeline.state == "draining"
    with pytest.raises(errors.Draining):
        await predict(pipeline, make_photo(0))


async def test_drain_finishes_a_request_that_is_decoding(
    tiny_bundle: Bundle, decoding: Gate
) -> None:
    async with running(tiny_bundle) as pipeline:
        request = asyncio.create_task(predict_scores(pipeline, 0))
        await decoding.wait_for_arrival()
        drain = asyncio.create_task(pipeline.drain())
        await asyncio.sleep(0)
        assert not drain.done()
        decoding.open()
        assert len(await request) == len(TINY_LABELS)
        await drain


async def test_pipeline_is_failed_when_its_batcher_dies(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_arguments: object, **_options: object) -> None:
        raise SystemExit

    async with running(tiny_bundle) as pipeline:
        monkeypatch.setattr(pipeline.engine, "run", die)
        with pytest.raises(errors.NotReady):
            await predict(pipeline, make_photo(0))
        assert pipeline.state == "failed"
        with pytest.raises(errors.NotReady):
            await predict(pipeline, make_photo(0))


@pytest.mark.parametrize(
    ("device", "deadline_ms", "seconds"),
    [("cuda", 1000, 60), ("cuda", 90_000, 180), ("cpu", 1000, 600), ("openvino", 900_000, 1800)],
)
async def test_run_hangs_after_twice_the_deadline_and_a_minimum_for_its_device(
    tiny_bundle: Bundle, device: Device, deadline_ms: float, seconds: float
) -> None:
    engine = object.__new__(Engine)
    engine.device = device
    settings = make_settings(tiny_bundle, deadline_ms=deadline_ms)
    assert pipeline_module.find_run_timeout(engine, settings) == seconds
