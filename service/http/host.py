"""Hosting: the pipeline of a running app, from `loading` to `drained`.

In: settings. Out: the pipeline, as soon as it is open. It opens in the background, so
that `/livez` and `/readyz` answer from the first second on; a bundle that cannot be
opened leaves a `failure` for whoever runs the server. Next: `routes/`, which ask for the
pipeline on every request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from service.errors import BundleError, Draining, NotReady, ServiceBroken, StartError
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.scheduling.stages import Watcher
from service.settings import Settings, check_variables

logger = logging.getLogger(__name__)

OpenPipeline = Callable[[Settings], Pipeline]


class PipelineHost:
    """Opens one pipeline, hands it out, and drains it.

    Attributes:
        settings: what the pipeline is opened with.
        failure: why it could not be opened, or broke; its text is one line for a person.
        watchers: who is told what the pipeline does, from its opening on.
    """

    def __init__(self, settings: Settings, open_pipeline: OpenPipeline = open_pipeline) -> None:
        """Opens nothing yet."""
        self.settings = settings
        self.failure: StartError | BundleError | ServiceBroken | None = None
        self.watchers: list[Watcher] = []
        self._open_pipeline = open_pipeline
        self._pipeline: Pipeline | None = None
        self._draining = False

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline.

        Raises:
            NotReady: it is loading, or it failed.
            Draining: the service is shutting down.
        """
        if self._draining:
            raise Draining("the service is shutting down")
        if self._pipeline is None:
            raise NotReady("the pipeline is loading")
        return self._pipeline

    @property
    def draining(self) -> bool:
        """Whether the service is shutting down."""
        return self._draining

    @property
    def opened(self) -> Pipeline | None:
        """The pipeline, whether it takes requests or not; None while there is none."""
        return self._pipeline

    @property
    def ready(self) -> bool:
        """Whether requests are answered now."""
        opened = self._pipeline
        return not self._draining and opened is not None and opened.state == "ready"

    def check_ready(self) -> None:
        """Does nothing if requests are answered now.

        Raises:
            UnavailableError: they are not.
        """
        if self.pipeline.state != "ready":
            raise NotReady(f"the pipeline is {self.pipeline.state}")

    def check_alive(self) -> None:
        """Sets `failure` where the pipeline is open and will never answer again."""
        if self.failure is None and self._pipeline is not None and self._pipeline.state == "failed":
            self.failure = ServiceBroken("the batcher died: see the log")

    async def open(self) -> None:
        """Opens and starts the pipeline, or sets `failure`; never raises."""
        try:
            check_variables()
            # Loading and warming up take seconds, in which the event loop has to answer.
            pipeline = await asyncio.to_thread(self._open_pipeline, self.settings)
            pipeline.watchers = tuple(self.watchers)
            await pipeline.start()
        except (StartError, BundleError) as error:
            self.failure = error
        except Exception:
            logger.exception("unexpected error while opening the bundle")
            self.failure = StartError("the bundle cannot be opened: see the log")
        else:
            if self._draining:
                await pipeline.drain()
                return
            self._pipeline = pipeline
            runtime = pipeline.engine
            card = pipeline.bundle.card
            fields = {
                "model": card.name,
                "version": card.version,
                "device": runtime.device,
                "provider": runtime.provider,
                "precision": runtime.precision,
            }
            logger.info("ready", extra=fields)

    async def drain(self) -> None:
        """Refuses new work and waits for the work in hand; may be called twice."""
        begun, self._draining = self._draining, True
        if self._pipeline is not None and not begun:
            await self._pipeline.drain()

    def hurry(self) -> None:
        """Fails the work that `drain` waits for."""
        if self._pipeline is not None:
            self._pipeline.hurry()
