"""The pipeline of a running app, from loading to drained.

It opens in the background, so that `/livez` and `/readyz` answer at once.
"""

import asyncio
import logging
from collections.abc import Callable

from service.errors import BundleError, Draining, NotReady, ServiceBroken, StartError
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.settings import Settings, check_variables
from service.stages import Observer

logger = logging.getLogger(__name__)

OpenPipeline = Callable[[Settings], Pipeline]


class PipelineHost:
    """Opens one pipeline, hands it out, and drains it; `observers` get its batches and predictions.

    `failure` says in one line for the operator why the pipeline cannot be opened, or broke.
    """

    def __init__(self, settings: Settings, open_pipeline: OpenPipeline = open_pipeline) -> None:
        self.settings = settings
        self.failure: StartError | BundleError | ServiceBroken | None = None
        self.observers: list[Observer] = []
        self.opened: Pipeline | None = None  # while it loads
        self.draining = False
        # As a worker: whether all workers of the start are ready.
        self.others_ready: Callable[[], bool] = lambda: True
        self._open_pipeline = open_pipeline
        self._loading: Pipeline | None = None

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline; raises `NotReady` if it is not open, `Draining` during shutdown."""
        if self.draining:
            raise Draining("the service is shutting down")
        if self.opened is None:
            error = NotReady("the pipeline is loading")
            if self._loading and (progress := self._loading.catalogue.reencoding_progress):
                done, count = progress
                error.detail = f"Label sets are encoded for this model: {done} of {count} are done."
            raise error
        return self.opened

    @property
    def ready(self) -> bool:
        """Whether requests are answered now."""
        return not self.draining and self.opened is not None and self.opened.state == "ready"

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
            # Loading and warming up take seconds; the event loop must answer meanwhile.
            pipeline = await asyncio.to_thread(self._open_pipeline, self.settings)
            pipeline.observers.extend(self.observers)
            self._loading = pipeline
            await pipeline.start()
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
            card, engine = pipeline.bundle.card, pipeline.engine
            fields = {
                "model": card.name,
                "version": card.version,
                "device": engine.device,
                "provider": engine.provider,
                "precision": engine.precision,
            }
            logger.info("ready", extra=fields)

    async def drain(self) -> None:
        """Refuses new work and finishes the rest; a second call does nothing."""
        begun, self.draining = self.draining, True
        if self.opened is not None and not begun:
            await self.opened.drain()
