"""The server: one uvicorn process that starts honestly and stops gracefully.

In: settings. Out: an exit code. A bundle that cannot be opened stops it with a reason. On
SIGTERM it goes on listening while it drains, so that `/readyz` and new predictions are
answered with 503; then it closes.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import ipaddress
import logging
import math
import socket
import sys
import time
from types import FrameType

import uvicorn
from fastapi import FastAPI

from service.errors import StartError
from service.http.app import create_app
from service.http.host import OpenPipeline, PipelineHost
from service.http.routes import predict
from service.http.telemetry.exposition import open_own_port
from service.http.transport.protocol import Refuse, make_protocol
from service.http.transport.shedding import Shedder
from service.pipeline.pipeline import Pipeline
from service.scheduling.cpu import share_cores
from service.settings import Settings

_OBJECTS_PER_COLLECTION = 5000
# Where draining took all the time there is, its answers still have to reach their clients.
_CLOSING_SECONDS = 1

logger = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """uvicorn that watches the pipeline's host and drains it before it closes."""

    def __init__(self, config: uvicorn.Config, host: PipelineHost) -> None:
        """Watches `host`."""
        super().__init__(config)
        self._host = host
        self._hurried = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Stops on the first signal; on the second without those who wait, on the third at once.

        uvicorn's own would raise the signal again at the end, which makes the exit code
        of an orderly stop that of a killed process.
        """
        self.force_exit = self._hurried
        self._hurried = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Says where it listens, with the port that the system chose for port 0; the model loads.

        Raises:
            StartError: it cannot listen there.
        """
        try:
            await super().startup(sockets)
        except SystemExit as end:  # uvicorn's way out of what it met
            raise _tell_port(self._host.settings, end.__context__) from end
        for server in self.servers:
            for listener in server.sockets:
                address, port = listener.getsockname()[:2]
                fields = {"address": address, "port": port, "state": "loading"}
                logger.info("listening", extra=fields)
        if _is_open_to_all(self._host.settings):
            logger.warning("no keys are set: whoever reaches this address may change label sets")

    async def on_tick(self, counter: int) -> bool:
        """Stops where the pipeline could not be opened, or broke: a supervisor starts anew."""
        self._host.check_alive()
        return self._host.failure is not None or await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drains, with open doors, then closes; both together within `drain_seconds`."""
        drain_seconds = self._host.settings.drain_seconds
        if self._host.failure is None:
            logger.info("draining", extra={"seconds": drain_seconds})
        started = time.monotonic()
        draining = asyncio.create_task(self._host.drain())
        await self._wait_unless_hurried(draining)
        left = 0
        if self._hurried:
            self._host.hurry()
        else:  # requests that are still being uploaded get their 503 when they are complete
            left = math.ceil(drain_seconds - (time.monotonic() - started))
        self.config.timeout_graceful_shutdown = max(_CLOSING_SECONDS, left)
        closing = asyncio.create_task(super().shutdown(sockets))
        await self._wait_unless_hurried(closing)
        if self._hurried:  # as uvicorn does once that time is over; `access.py` answers them
            await asyncio.wait({closing}, timeout=_CLOSING_SECONDS)
            for task in self.server_state.tasks:
                task.cancel()
        await closing

    async def _wait_unless_hurried(self, task: asyncio.Task[None]) -> None:
        while not (task.done() or self._hurried):
            await asyncio.wait({task}, timeout=0.1)


def _is_open_to_all(settings: Settings) -> bool:
    if settings.predict_keys is not None or settings.admin_keys is not None:
        return False
    try:
        return not ipaddress.ip_address(settings.host).is_loopback
    except ValueError:
        return settings.host != "localhost"


def _tell_port(settings: Settings, error: BaseException | None) -> StartError:
    reason = getattr(error, "strerror", None) or "the port cannot be opened"
    return StartError(f"cannot listen on {settings.host}:{settings.port}: {reason}")


def _open_both(settings: Settings) -> list[socket.socket] | None:
    """Returns sockets of IPv6 and of IPv4 where `::` asks for both; None leaves it to uvicorn.

    uvicorn would listen to IPv6 alone. One socket for both would give clients of IPv4 addresses of
    IPv6 (::ffff:127.0.0.1), which are not those that `FORWARDED_ALLOW_IPS` names.

    Raises:
        StartError: the port cannot be had.
    """
    if settings.host != "::":
        return None
    try:
        six = socket.create_server(("::", settings.port), family=socket.AF_INET6)
        return [six, socket.create_server(("0.0.0.0", six.getsockname()[1]))]
    except OSError as error:
        raise _tell_port(settings, error) from error


def _settle_memory() -> None:
    """Takes what is loaded by now for permanent, and gives back what loading has left."""
    # To search it all for garbage again and again would cost 50 ms each time.
    gc.collect()
    gc.freeze()
    # What a request leaves is small and mostly no garbage cycle; to look for those after every few
    # hundred objects, as Python does, costs a twentieth of what the event loop does.
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)


def _choose_refusals(app: FastAPI, host: PipelineHost) -> Refuse | None:
    if host.settings.traces != "off":
        return None  # each request has its span, refused or not
    return Shedder(host, app.state.metrics, (route.path for route in predict.ROUTES)).refuse


def run_server(settings: Settings, open_pipeline: OpenPipeline) -> None:
    """Serves until SIGTERM or Ctrl+C; returns after an orderly stop.

    Args:
        settings: what to serve, and where.
        open_pipeline: makes the pipeline of the settings, or waits for it.

    Raises:
        StartError: the service cannot start as configured.
        BundleError: the bundle is absent, damaged or inconsistent.
        ServiceBroken: it broke while it ran.
    """

    def open_for_good(settings: Settings) -> Pipeline:
        pipeline = open_pipeline(settings)
        _settle_memory()
        return pipeline

    host = PipelineHost(settings, open_for_good)
    app = create_app(host)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=make_protocol(settings, _choose_refusals(app, host)),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=math.ceil(settings.keep_alive_seconds),
    )
    # The error of a port that cannot be had: `startup` raises it with more to say.
    logging.getLogger("uvicorn.error").addFilter(lambda told: not isinstance(told.msg, OSError))
    share_cores()
    with open_own_port(settings, app.state.metrics):
        Server(config, host).run(_open_both(settings))
    if host.failure is not None:
        raise host.failure
