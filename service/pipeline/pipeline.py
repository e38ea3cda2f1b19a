"""The story of a request: bytes -> batcher -> images -> engine -> scoring -> prediction.

In: a `Question`, which becomes a `Selection` once a request, and the bytes of each of its photos.
Out: a `Prediction`. The pipeline owns the stages and their life (loading, ready, draining,
failed); each stage's work is in its own file. Next: `http/`, which serves it, and `cli/`, which
needs no server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from service.bundle.card import CPU_DEVICES
from service.bundle.reader import Bundle
from service.engine.engine import Engine
from service.engine.heads import LogitsArray
from service.errors import DeadlineExceeded, NoMaps
from service.images.decode import DecodedImage, decode_image
from service.images.jpeg import Jpeg, parse_jpeg
from service.labels.catalogue import Catalogue
from service.labels.label_set import LabelSet
from service.labels.opening import open_catalogue
from service.labels.question import Question
from service.pipeline.explanation import Explainer, Explanation
from service.pipeline.loading import Graphs, open_graphs
from service.pipeline.prediction import Prediction, add_up_timings
from service.pipeline.scoring import ScoredLabel, score_labels
from service.pipeline.selection import Selection, select_labels
from service.pipeline.worker import Found, Inference, Item
from service.scheduling.admission import Admission, DrainRate, State
from service.scheduling.batcher import Batcher
from service.scheduling.cpu import count_cores, list_cores
from service.scheduling.queue import BatchQueue, BatchSizes
from service.scheduling.stages import Stage, Watcher
from service.scheduling.tasks import SideThreads
from service.settings import Settings

# Fewer labels are chosen from, and scored, faster than a thread takes over.
_LABELS_AT_ONCE = 2000

# Of names: some milliseconds' work, were they combining marks, whose normal form takes longest.
_CHARACTERS_RESOLVED_AT_ONCE = 5000

# What no run takes that ends: the largest question takes seconds on a GPU, minutes on a slow CPU.
_LONGEST_RUN_SECONDS = 60.0
_LONGEST_CPU_RUN_SECONDS = 600.0


class Pipeline:
    """All stages of one model, from bytes to labels.

    Made by `open_pipeline`; `start` and every later call belong to one event loop.

    Attributes:
        bundle: the model that is served.
        engine: what runs it: device, provider, precision, largest batch.
        catalogue: the label sets.
        explainer: what draws maps.
        settings: the settings it was opened with.
        queue: the photos that wait, the ones in side threads included.
    """

    def __init__(
        self, settings: Settings, bundle: Bundle, engine: Engine, catalogue: Catalogue
    ) -> None:
        """Puts the stages together; nothing runs before `start`.

        Raises:
            BundleError: a graph of maps is damaged, or is not what the bundle's format says.
        """
        self.bundle = bundle
        self.engine = engine
        self.explainer = Explainer(bundle)
        self.catalogue = catalogue
        self.settings = settings
        self._inference = Inference(engine, bundle.card.input, settings.max_pixels)
        self._drain_rate = DrainRate()
        self._side_threads = SideThreads(settings.decode_threads or count_cores())
        self.queue = BatchQueue[Item, Found](
            settings.queue_size,
            BatchSizes(engine.max_batch_size, engine.small_batch_size),
            workers=engine.workers,
            max_wait_seconds=settings.max_wait_ms / 1000,
            drain_rate=self._drain_rate,
            count_aside=lambda: self._side_threads.waiting,
        )
        self._batcher = Batcher[Item, Found](
            self._inference.run,
            self.queue,
            cores=list_cores(engine.workers, keep=engine.device == "cpu"),
            max_run_seconds=_bound_run(engine, settings),
        )
        self._admission = Admission(lambda: self._batcher.healthy, self._drain_rate)

    @property
    def state(self) -> State:
        """Where the pipeline is in its life; `failed` means that it never answers again."""
        return self._admission.state

    @property
    def watchers(self) -> tuple[Watcher, ...]:
        """Who is told of every photo and batch."""
        return self._inference.watchers

    @watchers.setter
    def watchers(self, watchers: tuple[Watcher, ...]) -> None:
        self._inference.watchers = watchers

    async def start(self) -> None:
        """Loads the label sets and starts taking requests.

        Raises:
            StartError: a label set of the bundle or the folder cannot be used.
        """
        await self.catalogue.start()
        self._batcher.start()
        self._admission.open()

    async def drain(self) -> None:
        """Refuses new requests, finishes what was taken, and stops.

        Takes at most `drain_seconds`; a request that still waits then fails with
        `Draining`.
        """
        deadline = asyncio.get_running_loop().time() + self.settings.drain_seconds
        await self._admission.close(deadline)
        await self._batcher.drain(deadline)
        await self.catalogue.stop()
        self._side_threads.stop()

    def abort_waiting(self) -> None:
        """Fails the requests in the queue with `Draining`, while it drains."""
        self._batcher.give_up()

    def taking(self) -> AbstractContextManager[None]:
        """Marks work on a request, which draining waits for.

        Raises:
            UnavailableError: the pipeline is not taking requests.
        """
        return self._admission.taking()

    async def select(self, question: Question, deadline: float | None = None) -> Selection:
        """Pins the label sets that a request asks for, until its last photo is answered.

        Args:
            question: what the client asks.
            deadline: from `make_deadline`, as for `predict`; None sets one now.

        Raises:
            QuestionError: the question does not fit the label sets, or asks for maps that the
                bundle does not have.
            LabelSetError: the candidate labels cannot be used, or `min_version` is not there.
            BusyError: too many encode labels, or the deadline passed.
            UnavailableError: the pipeline is not taking requests.
            StoreUnavailable: the label store, which may have what is asked for, does not answer.
            InferenceFailed: the candidate labels could not be encoded.
        """
        with self.taking():
            deadline = deadline or self.make_deadline()
            sets = await self._pin(question, deadline)
            selection = await self._select(sets, question, deadline)
        if question.explain and not self.explainer.covers(selection):
            raise NoMaps(tuple(part.labels.name for part in selection.parts))
        return selection

    async def _pin(self, question: Question, deadline: float) -> Sequence[LabelSet]:
        pinning = self.catalogue.pin(question)
        if not (question.min_version or question.candidate_labels):
            return await pinning  # it never waits, and a timeout takes 6 us
        try:
            async with asyncio.timeout_at(deadline):
                return await pinning
        except TimeoutError as error:
            raise DeadlineExceeded("deadline exceeded while pinning labels") from error

    async def _select(
        self, sets: Sequence[LabelSet], question: Question, deadline: float
    ) -> Selection:
        characters = sum(map(len, (*(question.include or ()), *(question.exclude or ()))))
        labels = sum(len(each.names) for each in sets)
        if characters <= _CHARACTERS_RESOLVED_AT_ONCE and labels <= _LABELS_AT_ONCE:
            return select_labels(sets, question)
        return await self._side_threads.run(deadline, select_labels, sets, question)

    async def predict(
        self,
        photo: bytes | Jpeg | DecodedImage,
        selection: Selection,
        deadline: float | None = None,
    ) -> Prediction:
        """Predicts the labels of one photo.

        Args:
            photo: a file's content, any supported format; a parsed JPEG; or pixels.
            selection: which labels to answer with, from `select`.
            deadline: from `make_deadline`; None sets one now.

        Raises:
            ImageError: the photo cannot be used.
            BusyError: the queue is full, or the deadline passed.
            UnavailableError: the pipeline is not taking requests.
            InferenceFailed: the engine failed on this photo's batch.
        """
        with self.taking():
            deadline = deadline or self.make_deadline()
            earlier: tuple[Stage, ...] = ()
            if isinstance(photo, bytes):
                # On a CPU the worker decodes quick photos itself: one thread needs fewer hand-overs
                # than two. A slow photo would hold up its batch, and a GPU would wait.
                jpeg = parse_jpeg(photo) if self.engine.device in CPU_DEVICES else None
                if jpeg is not None and jpeg.is_quick:
                    photo = jpeg
                else:
                    self.queue.check_room()  # before the photo costs a decode
                    started = time.perf_counter()
                    photo = await self._decode(jpeg or photo, deadline)
                    earlier = (Stage("decode", started, time.perf_counter()),)
            prediction = await self._answer(photo, selection, deadline, earlier)
            self._drain_rate.note_answer(time.perf_counter())
            return prediction

    def make_deadline(self) -> float:
        """Returns the deadline of a request that arrives now, in seconds on the loop's clock."""
        return asyncio.get_running_loop().time() + self.settings.deadline_ms / 1000

    async def _answer(
        self,
        photo: Jpeg | DecodedImage,
        selection: Selection,
        deadline: float,
        earlier: tuple[Stage, ...],
    ) -> Prediction:
        joined = time.perf_counter()
        item = Item(photo, selection.heads, bool(selection.question.explain))
        done = await self._batcher.submit(item, deadline, admitted=bool(earlier))
        found = done.result
        labels = await self._score(found.logits, selection, deadline)
        explanations: tuple[Explanation, ...] = ()
        if item.explained:
            explanations = await self._explain(labels, selection, found, deadline)
        queueing = Stage("queue", joined, joined + done.queue_seconds)
        stages = (*earlier, queueing, *found.stages)
        for watcher in self.watchers:
            watcher.saw_prediction(stages, done.batch_size)
        timings = add_up_timings(
            stages, done.queue_seconds, done.run_seconds, decoded_apart=bool(earlier)
        )
        image = found.image
        return Prediction(image.width, image.height, labels, timings, explanations)

    async def _score(
        self, logits: Sequence[LogitsArray], selection: Selection, deadline: float
    ) -> tuple[ScoredLabel, ...]:
        if selection.num_labels <= _LABELS_AT_ONCE:
            return score_labels(logits, selection)
        return await self._side_threads.run(deadline, score_labels, logits, selection)

    async def _explain(
        self, labels: Sequence[ScoredLabel], selection: Selection, found: Found, deadline: float
    ) -> tuple[Explanation, ...]:
        size = (found.image.width, found.image.height)
        explain = self.explainer.explain_labels
        return await self._side_threads.run(
            deadline, explain, labels, selection, found.memories, size
        )

    async def _decode(self, photo: bytes | Jpeg, deadline: float) -> DecodedImage:
        contract = self.bundle.card.input
        return await self._side_threads.run(
            deadline, decode_image, photo, contract, self.settings.max_pixels
        )


def _bound_run(engine: Engine, settings: Settings) -> float:
    """Returns after how many seconds a run hangs; nobody waits for one that is slower."""
    on_cpu = engine.device in CPU_DEVICES
    longest = _LONGEST_CPU_RUN_SECONDS if on_cpu else _LONGEST_RUN_SECONDS
    return max(longest, 2 * settings.deadline_ms / 1000)


def open_pipeline(settings: Settings) -> Pipeline:
    """Opens the graphs of a bundle, warm, and the label sets.

    Raises:
        BundleError: the bundle is absent, damaged or inconsistent.
        StartError: what the settings ask for is not there.
    """
    return build_pipeline(settings, open_graphs(settings))


def build_pipeline(settings: Settings, graphs: Graphs) -> Pipeline:
    """Opens the label sets, and puts them and the graphs together.

    Raises:
        BundleError: a label set or a graph of the bundle cannot be used.
        StartError: what the settings ask for is not there.
    """
    catalogue = open_catalogue(settings, graphs.bundle, graphs.encoding)
    return Pipeline(settings, graphs.bundle, graphs.engine, catalogue)
