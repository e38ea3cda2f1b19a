"""The open connections of a process: bounded, because the system aborts all new ones otherwise.

A process without free file descriptors resets new connections, those of probes too. So the longest
idle connections are closed first, and some more connections are accepted for health.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import resource
from collections import Counter
from contextlib import suppress
from typing import Protocol

from service.errors import StartError
from service.settings import Settings

# An idle connection takes 14 kB.
_MOST = 10_000
# For health, above the limit.
_RESERVE = 16
# One search for idle connections closes several of them: a search of 10,000 takes 10 ms.
_SHED_SHARE = 16
_LOG_SECONDS = 1

logger = logging.getLogger(__name__)


class Connection(Protocol):
    """What the registry asks of a connection; `client` is its address and port."""

    client: tuple[str, int] | None

    def find_idle_start(self) -> float | None:
        """Returns since when no request is in progress, on the loop's clock; None if one is."""

    def abort(self) -> None:
        """Closes the connection at once."""


class Connections:
    """The open connections of a process; belongs to one event loop."""

    def __init__(self, settings: Settings) -> None:
        """Raises the limit of open files; `StartError` if it is too low for the settings."""
        files = _raise_file_limit()
        # The others are for the label store, fetched images and connections that are being closed.
        most = max(1, files * 3 // 4)
        if settings.max_connections > most:
            raise StartError(
                f"max_connections must be at most {most}, three quarters of the files that this "
                f"process may open; it is {settings.max_connections}: raise `ulimit -n`"
            )
        self._most = settings.max_connections or min(most, _MOST)
        self._most_per_address = settings.max_connections_per_address
        self._open: dict[Connection, str] = {}  # and their addresses
        self._of_address = Counter[str]()
        self._unlogged = Counter[str]()

    def add(self, connection: Connection) -> bool:
        """Adds a connection; returns False if it may ask for health only, or is closed."""
        address = connection.client[0] if connection.client else ""
        self._open[connection] = address
        self._of_address[address] += 1
        limit = self._most_per_address
        is_over = limit is not None and self._of_address[address] > limit
        if is_over and not self._shed(1, connection, address):
            self._abort(connection, "refused")
            return False
        if len(self._open) <= self._most:
            return True
        if self._shed(self._most // _SHED_SHARE + 1, connection):
            return True
        if len(self._open) > self._most + _RESERVE:
            self._abort(connection, "refused")
        return False

    def remove(self, connection: Connection) -> None:
        """Removes a connection, if it is still known."""
        address = self._open.pop(connection, None)
        if address is not None:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]

    def _shed(self, count: int, new: Connection, address: str | None = None) -> bool:
        """Closes the longest idle connections, of one address or of all."""
        idle = [
            (since, number, connection)
            for number, (connection, its_address) in enumerate(self._open.items())
            if address in (None, its_address) and connection is not new
            if (since := connection.find_idle_start()) is not None
        ]
        for _, _, connection in heapq.nsmallest(count, idle):
            self._abort(connection, "idle")
        return bool(idle)

    def _abort(self, connection: Connection, reason: str) -> None:
        self.remove(connection)
        connection.abort()
        if not self._unlogged:
            asyncio.get_running_loop().call_later(_LOG_SECONDS, self._log)
        self._unlogged[reason] += 1

    def _log(self) -> None:
        fields = {"open": len(self._open), **self._unlogged}
        logger.warning("too many connections: some were closed", extra=fields)
        self._unlogged.clear()


def _raise_file_limit() -> int:
    """Raises the number of files that this process may open as far as permitted; returns it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS permits fewer than its hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if files == resource.RLIM_INFINITY else files
