"""The pipeline of a running app; it opens in the background, so that `/livez` answers at once."""

import asyncio
import logging
import time
from collections.abc import Callable

from service.errors import BundleError, Draining, NotReady, ServiceBroken, ServiceError, StartError
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.scheduling.tasks import ArgumentTs, ResultT, SideThreads
from service.settings import Settings, check_variables
from service.stages import Observer

logger = logging.getLogger(__name__)

OpenPipeline = Callable[[Settings], Pipeline]


class ServedPipeline:
    """Opens a pipeline, hands it out, reloads and drains it; `observers` get its batches.

    `reload` replaces it by one of the bundle and label sets that are on disk then.
    `failure` says in one line for the operator why the pipeline cannot be opened, or broke.
    `side_threads` read bodies and write answers; `lifespan` stops them after the last request.
    """

    def __init__(self, settings: Settings, open_pipeline: OpenPipeline = open_pipeline) -> None:
        self.settings = settings
        self.failure: StartError | BundleError | ServiceBroken | None = None
        self.observers: list[Observer] = []
        self.opened: Pipeline | None = None  # while it loads
        self.draining = False
        # Two: most of their work holds Python's lock. Photos have threads of their own.
        self.side_threads = SideThreads(1)
        # As a worker: whether all workers of the start are ready.
        self.others_ready: Callable[[], bool] = lambda: True
        self._open_pipeline = open_pipeline
        self._loading: Pipeline | None = None
        self._earlier: Pipeline | None = None  # until its last request ends

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline. Raises `NotReady` if it is not open, `Draining` during shutdown."""
        if self.draining:
            raise Draining("the service is shutting down")
        if self.opened is None:
            error = NotReady("the pipeline is loading")
            sets = self._loading and self._loading.catalogue.registered
            if sets and sets.reencoding_progress:
                done, count = sets.reencoding_progress
                error.detail = f"Label sets are encoded for this model: {done} of {count} are done."
            raise error
        return self.opened

    @property
    def ready(self) -> bool:
        """Whether requests are answered now."""
        return not self.draining and self.opened is not None and self.opened.state == "ready"

    async def run_in_side_thread(
        self, work: Callable[[*ArgumentTs], ResultT], *arguments: *ArgumentTs
    ) -> ResultT:
        """Calls a function within the time of a request. Raises as `SideThreads.run`."""
        deadline = asyncio.get_running_loop().time() + self.settings.deadline_ms / 1000
        return await self.side_threads.run(deadline, work, *arguments)

    def check_ready(self) -> None:
        """Raises `UnavailableError` if requests are not answered now."""
        if self.pipeline.state != "ready":
            raise NotReady(f"the pipeline is {self.pipeline.state}")
        if not self.others_ready():
            raise NotReady("other workers are loading")

    def check_alive(self) -> None:
        """Sets `failure` if the pipeline can never answer again."""
        if self.failure is None and self.opened is not None and self.opened.state == "failed":
            self.failure = ServiceBroken("the batcher died: see the log")

    async def open(self) -> None:
        """Opens and starts the pipeline once, or sets `failure`; never raises."""
        if self.opened is not None or self.failure is not None:
            return
        try:
            check_variables()
            pipeline = await self._open()
        except (StartError, BundleError) as error:
            self.failure = error
        except Exception:
            logger.exception("unexpected error while opening the bundle")
            self.failure = StartError("the bundle cannot be opened: see the log")
        else:
            if self.draining:
                await pipeline.drain()
                return
            self.opened = pipeline
            _log("ready", pipeline)

    async def _open(self) -> Pipeline:
        # Loading and warming up take seconds; the event loop must answer meanwhile.
        self._loading = None
        pipeline = await asyncio.to_thread(self._open_pipeline, self.settings)
        pipeline.observers.extend(self.observers)
        self._loading = pipeline
        await pipeline.start()
        return pipeline

    async def reload(self) -> bool:
        """Opens the pipeline again, and takes it if that succeeds; else logs why and keeps this.

        Requests that have begun end on the earlier one. When they have, call `close_earlier`.
        """
        started, earlier = time.perf_counter(), self.opened
        assert earlier is not None, "it is called when ready"
        try:
            pipeline = await self._open()
            sets, next_sets = earlier.catalogue.registered, pipeline.catalogue.registered
            if sets is not None and next_sets is not None:
                await sets.hand_over(next_sets)
        except Exception as error:
            if not self.draining:  # else the earlier one's label sets are closed
                is_known = isinstance(error, ServiceError | BundleError)
                logger.error(
                    "the reload failed, and the earlier model stays in use: %s: correct it and "
                    "send SIGHUP again",
                    str(error) or type(error).__name__,
                    exc_info=None if is_known else error,
                )
        else:
            if not self.draining:
                self.opened, self._earlier = pipeline, earlier
                _log("reloaded", pipeline, seconds=round(time.perf_counter() - started, 2))
        loaded, self._loading = self._loading, None
        if loaded is not None and loaded is not self.opened:
            await loaded.drain()
        return loaded is self.opened

    async def close_earlier(self) -> None:
        """Closes the pipeline that the last `reload` replaced, if it is not draining already."""
        if self._earlier is not None and not self.draining:
            earlier, self._earlier = self._earlier, None  # `drain` must not close it too
            await earlier.drain()

    async def drain(self) -> None:
        """Refuses new work and finishes the rest; a second call does nothing."""
        begun, self.draining = self.draining, True
        if not begun:
            await asyncio.gather(*(pipeline.drain() for pipeline in self._list_pipelines()))

    def abort_waiting(self) -> None:
        """Fails the photos that wait or run."""
        for pipeline in self._list_pipelines():
            pipeline.abort_waiting()

    def _list_pipelines(self) -> list[Pipeline]:
        return list(filter(None, (self.opened, self._earlier)))


def describe(pipeline: Pipeline) -> dict[str, str]:
    """Returns what runs, for logs and metrics."""
    card, engine = pipeline.bundle.card, pipeline.engine
    return {
        "model": card.name,
        "version": card.version,
        "device": engine.device,
        "provider": engine.provider,
        "precision": engine.precision,
    }


def _log(event: str, pipeline: Pipeline, **fields: object) -> None:
    sets = pipeline.catalogue.registered
    store = {} if sets is None else {"label_store": sets.address}
    logger.info(event, extra={**describe(pipeline), **store, **fields})
