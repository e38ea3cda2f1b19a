"""One uvicorn process: the whole service, or one of its workers.

On SIGTERM it listens while it drains, so that `/readyz` and new predictions get a 503; then it
closes. On SIGHUP it opens the bundle again and serves on.
"""

import asyncio
import atexit
import gc
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from service.engine.sessions import return_memory
from service.http.app import create_app
from service.http.routes import predict, status
from service.pipeline.pipeline import Pipeline
from service.pipeline.served import OpenPipeline, ServedPipeline
from service.process.notify import Watchdog, notify, notify_reloaded, notify_reloading
from service.process.ports import Ports
from service.process.protocol.connection import LimitedProtocol, Refuse
from service.process.protocol.open_connections import Connections
from service.process.shedding import Shedder
from service.process.workers import NOT_RELOADED, READY, RELOADED, Worker, has_lost_terminal
from service.scheduling.cpu import set_thread_scheduling
from service.settings import Settings

_OBJECTS_PER_COLLECTION = 5000
# After draining, answers still have to reach their clients.
_CLOSING_SECONDS = 1

logger = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """uvicorn that stops if the pipeline fails, and drains it before it closes.

    As a `worker` it is stopped by its supervisor. `announce` is called once, when predictions are
    answered. `own_ports` listen for other apps, which have no lifespan.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        served: ServedPipeline,
        announce: Callable[[], None],
        worker: Worker | None = None,
    ) -> None:
        super().__init__(config)
        self._served = served
        self.own_ports: list[tuple[socket.socket, uvicorn.Config]] = []
        self._announce = announce
        self._announced = False
        self._reload_asked = False
        self._reloading: asyncio.Task[None] | None = None
        self._worker = worker
        self._watchdog = Watchdog()
        self._stops = 0

    @property
    def _aborted(self) -> bool:
        return self._stops >= 2

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Drains at the first signal, fails unanswered requests at the second, ends at the third.

        Replaces uvicorn's handler, which raises the signal again: a stop would exit as if killed.
        A worker only drains: systemd and terminals send a signal to all processes, and the
        supervisor passes on each that it gets.
        """
        if self._worker is None:
            self._stop()
        else:
            self.should_exit = True

    def _ask_reload(self) -> None:
        self._reload_asked = True  # until it has loaded and an earlier reload has ended

    def _stop(self) -> None:
        self._stops += 1
        self.should_exit = True
        self.force_exit = self._stops >= 3

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts listening; all workers but the first of a start are ready before."""
        if self._worker is None:
            signal.signal(
                signal.SIGHUP,
                lambda *_: self._stop() if has_lost_terminal() else self._ask_reload(),
            )
        else:
            await self._prepare(self._worker)
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        for listener, config in self.own_ports:
            http: Any = config.http
            protocol = partial(http, config=config, server_state=self.server_state, app_state={})
            self.servers.append(await loop.create_server(protocol, sock=listener))

    async def _prepare(self, worker: Worker) -> None:
        loop = asyncio.get_running_loop()

        def receive() -> None:
            if not worker.receive(self._stop, self._ask_reload):
                loop.remove_reader(worker.link.fileno())

        loop.add_reader(worker.link.fileno(), receive)
        self._served.others_ready = lambda: worker.complete[0] == 1
        if not worker.listens_at_once:
            await self._served.open()
            if self._served.failure is not None:
                raise self._served.failure

    async def on_tick(self, counter: int) -> bool:
        """Stops if the pipeline cannot be opened or broke: a supervisor restarts the process."""
        self._watchdog.beat()
        self._served.check_alive()
        if self._served.ready and not self._announced:
            self._announced = True
            self._announce()
        is_free = self._reloading is None or self._reloading.done()
        if self._reload_asked and self._announced and is_free:
            self._reload_asked = False
            self._reloading = asyncio.create_task(self._reload())
        return self._served.failure is not None or await super().on_tick(counter)

    async def _reload(self) -> None:
        notify_reloading()
        app: Any = self.config.app
        app.state.keys.reread(forced=True)
        done = False
        try:
            done = await self._served.reload()
            app.state.metrics.reloads.labels("done" if done else "failed").inc()
            ending = asyncio.create_task(self._end_earlier())
            # Else the models of several workers would be in memory twice. But a client that reads
            # its answer slowly does not stop the others.
            await asyncio.wait({ending}, timeout=self._served.settings.drain_seconds)
        finally:  # else the supervisor would wait, and ask no worker at the next SIGHUP
            if self._worker is not None:
                self._worker.send(RELOADED if done else NOT_RELOADED)
            if not self.should_exit:
                notify_reloaded(done=done)
        await ending

    async def _end_earlier(self) -> None:
        # Before they have read a body, requests have chosen the pipeline that answers them.
        if running := {*self.server_state.tasks}:
            await asyncio.wait(running)
        await self._served.close_earlier()
        gc.unfreeze()
        _freeze_memory()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drains while it listens, then closes; both together within `drain_seconds`."""
        drain_seconds = self._served.settings.drain_seconds
        if self._served.failure is None:
            logger.info("draining", extra={"seconds": drain_seconds})
            notify("STOPPING=1", "STATUS=draining")
        started = time.monotonic()
        await self._wait_unless_aborted(asyncio.create_task(self._served.drain()))
        left = 0
        if self._aborted:
            self._served.abort_waiting()
        else:  # requests that are still uploading get their 503 when they are complete
            left = math.ceil(drain_seconds - (time.monotonic() - started))
        self.config.timeout_graceful_shutdown = max(_CLOSING_SECONDS, left)
        closing = asyncio.create_task(super().shutdown(sockets))
        await self._wait_unless_aborted(closing)
        if self._aborted:  # as uvicorn does after the timeout; `telemetry/access.py` answers them
            await asyncio.wait({closing}, timeout=_CLOSING_SECONDS)
            for task in self.server_state.tasks:
                task.cancel()
        await closing

    async def _wait_unless_aborted(self, task: asyncio.Task[None]) -> None:
        while not (task.done() or self._aborted):
            await asyncio.wait({task}, timeout=0.1)


def _freeze_memory() -> None:
    # A full collection of all loaded objects would take 50 ms each time.
    gc.collect()
    gc.freeze()
    # Requests leave few cycles; Python's default threshold of some hundred objects costs 5 % of the
    # event loop's time.
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    return_memory()


def run_server(
    settings: Settings, open_pipeline: OpenPipeline, worker: Worker | None = None
) -> None:
    """Serves until SIGTERM or Ctrl+C and ends the process; a worker returns, and shares ports.

    Raises `StartError` or `BundleError` if it cannot start, `ServiceBroken` if it broke since.
    """

    def open_and_freeze(settings: Settings) -> Pipeline:
        pipeline = open_pipeline(settings)
        if worker is not None:
            pipeline.note = partial(worker.suspects.note, worker.number)
        if served.opened is None:  # else the earlier one would be frozen too
            _freeze_memory()
        return pipeline

    served = ServedPipeline(settings, open_and_freeze)
    app = create_app(served)
    # With traces, requests that a full queue refuses have spans too, so the app refuses them.
    shed = predict.ROUTES if settings.traces == "off" else ()
    paths = (route.path for route in shed)
    shedder = Shedder(served, app.state.metrics, paths, app.state.renderers)
    connections = Connections(settings)

    def configure(app: ASGIApp, refuse: Refuse) -> uvicorn.Config:
        http: Any = partial(LimitedProtocol, settings, connections, refuse)
        return uvicorn.Config(
            app,
            http=http,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # `security/proxies.py` reads them
            workers=1,  # else uvicorn reads WEB_CONCURRENCY
            timeout_keep_alive=math.ceil(settings.keep_alive_seconds),
        )

    set_thread_scheduling()
    ports = Ports(settings) if worker is None else worker.ports
    announce = ports.announce if worker is None else partial(worker.send, READY)
    server = Server(configure(app, shedder.refuse), served, announce, worker)
    if ports.metrics:
        config = configure(status.make_metrics_app(app.state.metrics), lambda _scope: None)
        server.own_ports += [(listener, config) for listener in ports.metrics]
    server.run(ports.sockets if worker is None else ports.share())
    if served.failure is not None:
        raise served.failure
    if worker is None:
        # Python's own exit would abort the process if a run outlasts the drain.
        atexit._run_exitfuncs()  # noqa: SLF001
        os._exit(0)
