"""One request: `select` pins its labels, `predict` answers each of its photos.

bytes -> decode -> queue -> batch on the engine -> scores -> labels, maps -> prediction
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Literal

from service import errors
from service.bundle.card import CPU_DEVICES
from service.caller import CALLER
from service.engine.engine import Engine
from service.engine.heads import Head, LogitsArray, ScreenedLogits, ScreenedQueries, count_scored
from service.images.decode import DecodedImage, decode_image
from service.images.jpeg import START_OF_IMAGE, Jpeg, parse_jpeg
from service.labels.catalogue import open_catalogue
from service.labels.whitening import Vector
from service.pipeline.explanation import Explainer, Explanation
from service.pipeline.loading import Graphs, open_graphs
from service.pipeline.prediction import Prediction, add_up_timings
from service.pipeline.scoring import score_labels
from service.pipeline.selection import Selection, select_labels
from service.pipeline.worker import Inference, Item, Result
from service.question import Question
from service.scheduling.batcher import Batcher
from service.scheduling.cpu import count_cores, list_cores
from service.scheduling.queue import BatchQueue, BatchSizes, Done
from service.scheduling.tasks import SideThreads
from service.settings import Settings
from service.stages import Observer, Stage

# Choosing from or scoring up to this many labels takes less time than switching to a thread.
_MAX_INLINE_LABELS = 2000
_MAX_INLINE_SETS = 50  # 40 us each
# In `include` and `exclude`: normalising combining marks, the slowest, takes some milliseconds.
_MAX_INLINE_CHARACTERS = 5000

_MAX_CONCURRENCY = 16
_NOTHING = nullcontext()
# On a CPU, scoring so many takes as long as encoding a photo (default bundle).
_WEIGHT_LABELS = 800

UNIT_PIXELS = 12 * 2**20
"""A photo counts one unit of the rate limit for each started 12 Mi pixels, as most cameras have."""

# Real photos have up to 2,000 pixels a byte, and blank ones up to 8,200 as PNG. A lossless WebP can
# have a million, which would take 1.5 seconds to decode.
_MAX_PIXELS_PER_BYTE = 10_000
_MIN_PIXELS_READ = 2**18

# JPEGs are decoded at reduced size; of progressive ones all coefficients are in memory.
_JPEG_SHARE = 4

# A longer run counts as hung: the largest question takes seconds on a GPU, minutes on a slow CPU.
_MAX_RUN_SECONDS = 60.0
_MAX_CPU_RUN_SECONDS = 600.0

State = Literal["loading", "ready", "draining", "failed"]


def open_pipeline(settings: Settings, graphs: Graphs | None = None) -> "Pipeline":
    """Opens graphs, if not given, and label sets; raises `BundleError` or `StartError`."""
    return Pipeline(settings, graphs or open_graphs(settings))


class Pipeline:
    """All stages of one model; `start` and all later calls belong to one event loop.

    `observers`, set before `start`, get every batch and prediction. `queue` counts photos in side
    threads too. `note`, set by a worker process, is entered for each photo.
    """

    def __init__(self, settings: Settings, graphs: Graphs) -> None:
        self.settings = settings
        self.bundle, self.engine = bundle, engine = graphs.bundle, graphs.engine
        self.catalogue = open_catalogue(settings, bundle, graphs.encoders, graphs.arrays)
        whitening = self.catalogue.whitening
        if whitening is not None and engine.width not in (None, whitening.width):
            widths = f"{whitening.width}, the encoder of {engine.width}"
            raise errors.BundleError(f"background.npz is of width {widths}")
        self.explainer = Explainer(bundle)
        self.observers: list[Observer] = []
        self.note: Callable[[object], AbstractContextManager[None]] = lambda _photo: _NOTHING
        inference = Inference(engine, bundle.card.input, settings.max_pixels, self.observers)
        decoders = settings.decode_threads or count_cores()
        self._side_threads = SideThreads(decoders, settings.max_decoding_pixels)
        self.queue = BatchQueue[Item, Result](
            settings.queue_size,
            BatchSizes(engine.max_batch_size, engine.small_batch_size),
            workers=engine.workers,
            max_wait_seconds=settings.max_wait_ms / 1000,
            count_side_items=lambda: self._side_threads.waiting,
        )
        self._batcher = Batcher[Item, Result](
            inference.run,
            self.queue,
            cores=list_cores(engine.workers, pin=engine.device == "cpu"),
            max_run_seconds=find_run_timeout(engine, settings),
        )
        self._phase: State = "loading"
        self._admitted = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def state(self) -> State:
        """The phase of the pipeline's life; `failed` is final."""
        if self._phase == "ready" and not self._batcher.healthy:
            return "failed"
        return self._phase

    @property
    def concurrency(self) -> int:
        """Photos that one caller should have in flight: the running batches and the next one."""
        return min(_MAX_CONCURRENCY, self.settings.queue_size)

    async def start(self) -> None:
        """Loads the label sets and starts taking requests; raises `StartError`."""
        await self.catalogue.start()
        self._batcher.start()
        self._phase = "ready"

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Marks work that draining waits for; raises `UnavailableError` if not ready."""
        state = self.state
        if state == "draining":
            raise errors.Draining("the pipeline is draining")
        if state != "ready":
            raise errors.NotReady(f"the pipeline is {state}")
        if not self._admitted:
            self.queue.drain_rate.note_start(time.perf_counter())
        self._admitted += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._admitted -= 1
            if not self._admitted:
                self._idle.set()

    def make_deadline(self, timeout_seconds: float = math.inf) -> float:
        """Returns the deadline of a request that arrives now, in seconds on the loop's clock.

        A client's `timeout_seconds` only shortens the time of the settings.
        """
        seconds = min(timeout_seconds, self.settings.deadline_ms / 1000)
        return asyncio.get_running_loop().time() + seconds

    async def select(self, question: Question, deadline: float | None = None) -> Selection:
        """Pins the label sets of a request until its last photo is answered.

        `deadline` is from `make_deadline`; None sets one now. Raises QuestionError, LabelSetError,
        BusyError, UnavailableError, StoreUnavailable, or InferenceFailed if the encoder fails.
        """
        with self.admit():
            deadline = deadline or self.make_deadline()
            pinning = self.catalogue.pin(question)
            if question.min_version or question.candidate_labels:
                try:
                    async with asyncio.timeout_at(deadline):
                        sets = await pinning
                except TimeoutError as error:
                    raise errors.DeadlineExceeded("deadline exceeded while pinning") from error
            else:
                sets = await pinning  # never waits; a timeout would cost 6 us
            names = (*(question.include or ()), *(question.exclude or ()), *(question.parent or ()))
            num_labels, lexicon = sum(labels.num_labels for labels in sets), self.catalogue.lexicon
            if sum(map(len, names)) <= _MAX_INLINE_CHARACTERS and _is_quick(num_labels, sets):
                selection = select_labels(sets, question, lexicon)
            else:
                asked = sets, question, lexicon
                selection = await self._side_threads.run(deadline, select_labels, *asked)
        if question.explain and not self.explainer.covers(selection):
            raise errors.NoMaps(tuple(part.labels.name for part in selection.parts))
        return selection

    async def predict(
        self,
        photo: bytes | Jpeg | DecodedImage,
        selection: Selection,
        deadline: float | None = None,
    ) -> Prediction:
        """Predicts the labels of one photo: a file's content, a parsed JPEG, or pixels.

        `deadline` is from `make_deadline`; None sets one now. Raises ImageError, BusyError,
        UnavailableError, or InferenceFailed if the photo's batch fails.
        """
        question = selection.question
        explained, embedded = bool(question.explain), selection.embeds
        with self.admit(), self.note(photo):
            deadline = deadline or self.make_deadline()
            done, stages = await self._run(photo, selection.heads, deadline, explained, embedded)
            image, output = done.result.image, done.result.output
            scored = output.logits, selection, output.embedding
            run_in_side_thread = self._side_threads.run
            if _is_quick(selection.num_labels, selection.parts):
                labels = score_labels(*scored)
            else:
                labels = await run_in_side_thread(deadline, score_labels, *scored)
            explanations: tuple[Explanation, ...] = ()
            if explained:
                size = image.width, image.height
                explained_by = (labels, selection, output.memories, size, output.tokens)
                explain = self.explainer.explain_labels
                explanations = await run_in_side_thread(deadline, explain, *explained_by)
            return Prediction(
                *(image.width, image.height, labels),
                add_up_timings(stages, done.run_seconds),
                explanations,
                output.embedding if question.embedding else None,
                packed=question.embedding == "base64",
            )

    async def embed(
        self, photo: bytes, deadline: float, *heads: Head
    ) -> tuple[Vector, tuple[LogitsArray | ScreenedLogits, ...]]:
        """Returns a photo's embedding [D], of length 1, and the logits of each head.

        Raises as `predict`. `admit` is up to the caller: draining waits for all photos of a request
        of several.
        """
        with self.note(photo):
            done, _ = await self._run(photo, heads, deadline, explained=False, embedded=True)
        output = done.result.output
        assert output.embedding is not None
        return output.embedding, output.logits  # the pixels are not kept

    async def _run(
        self,
        photo: bytes | Jpeg | DecodedImage,
        heads: tuple[Head, ...],
        deadline: float,
        explained: bool,
        embedded: bool,
    ) -> tuple[Done[Result], tuple[Stage, ...]]:
        """Decodes a photo and waits for its batch; returns its stages in order too."""
        decoding: tuple[Stage, ...] = ()  # if it is not in the worker
        try:
            # On a CPU the worker decodes quick photos itself: one thread has fewer hand-overs than
            # two. A slow photo would delay its batch, and a GPU would wait.
            if isinstance(photo, bytes) and self.engine.device in CPU_DEVICES:
                photo = parse_jpeg(photo) or photo
            self.queue.check_room()  # before the photo costs a decode
            if isinstance(photo, bytes) or (isinstance(photo, Jpeg) and not photo.is_quick):
                started = time.perf_counter()
                photo = await self._decode(photo, deadline)
                decoding = (Stage("decode", started, time.perf_counter()),)
            joined = time.perf_counter()
            done = await self._submit(Item(photo, heads, explained, embedded), deadline)
            if not all(map(len, done.result.output.logits)):  # most labels reach the threshold
                exact = [h.queries if isinstance(h, ScreenedQueries) else h for h in heads]
                item = Item(done.result.image, tuple(exact), explained, embedded)
                done = await self._submit(item, deadline)
        except (errors.ImageError, errors.InferenceFailed):  # its place is free as well
            self.queue.drain_rate.note_answer(time.perf_counter())
            raise
        self.queue.drain_rate.note_answer(time.perf_counter())
        queueing = Stage("queue", joined, joined + done.queue_seconds)
        stages = (*decoding, queueing, *done.result.stages)
        for observer in self.observers:
            observer.on_prediction(stages, done.batch_size)
        return done, stages

    async def _submit(self, item: Item, deadline: float) -> Done[Result]:
        count = count_scored(item.heads)
        CALLER.get().charge_labels(count)
        weight = 1 + count // _WEIGHT_LABELS if self.engine.device in CPU_DEVICES else 1
        return await self._batcher.submit(item, deadline, weight)

    async def _decode(self, photo: bytes | Jpeg, deadline: float) -> DecodedImage:
        run, contract = self._side_threads.run, self.bundle.card.input
        data = photo.data if isinstance(photo, Jpeg) else photo
        limit = min(self.settings.max_pixels, limit_pixels(len(data)))
        try:
            # Most photos are of one unit; of others this reads the header.
            return await run(deadline, decode_image, photo, contract, min(limit, UNIT_PIXELS))
        except errors.TooManyPixels as error:
            if error.pixels is None:  # a side is too long
                raise
            pixels, where = error.pixels, error.where
        if pixels > self.settings.max_pixels:
            raise errors.TooManyPixels(self.settings.max_pixels, where=where)
        if pixels > limit:
            raise errors.TooManyPixels(limit, where=where, file_bytes=len(data))
        CALLER.get().charge((pixels - 1) // UNIT_PIXELS)
        weight = pixels // _JPEG_SHARE if data.startswith(START_OF_IMAGE) else pixels
        return await run(deadline, decode_image, photo, contract, limit, pixels=weight)

    async def drain(self) -> None:
        """Refuses new requests, finishes the others, and fails the rest after `drain_seconds`."""
        deadline = asyncio.get_running_loop().time() + self.settings.drain_seconds
        self._phase = "draining"
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._idle.wait()
        await self._batcher.drain(deadline)
        await self.catalogue.stop()
        self._side_threads.stop()

    def abort_waiting(self) -> None:
        """Fails the photos in the queue and on the engine with `Draining`."""
        self._batcher.fail_all()


def _is_quick(num_labels: int, sets: Sized) -> bool:
    """Returns whether choosing from these sets, or scoring them, takes less than a thread."""
    return num_labels <= _MAX_INLINE_LABELS and len(sets) <= _MAX_INLINE_SETS


def limit_pixels(file_bytes: int) -> int:
    """Returns the most pixels that are read of a file: blank images may have millions a byte."""
    return _MIN_PIXELS_READ + _MAX_PIXELS_PER_BYTE * file_bytes


def find_run_timeout(engine: Engine, settings: Settings) -> float:
    """Returns the seconds after which a run of an engine counts as hung."""
    longest = _MAX_CPU_RUN_SECONDS if engine.device in CPU_DEVICES else _MAX_RUN_SECONDS
    return max(longest, 2 * settings.deadline_ms / 1000)
