"""The open connections of a process: bounded, because the system aborts all new ones otherwise.

A process without free file descriptors resets new connections, those of probes too. So the longest
idle connections are closed first, and some more connections are accepted for health.
"""

import asyncio
import heapq
import logging
import resource
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from service.errors import StartError
from service.logs import EventCounter
from service.settings import Settings

# An idle connection takes 14 kB.
_MOST = 10_000
# For health, above the limit.
_RESERVE = 16
# One search for idle connections closes several of them: a search of 10,000 takes 10 ms.
_SHED_SHARE = 16
# A search that found fewer than that is repeated after this time.
_SEARCH_SECONDS = 0.1

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
        """Raises the limit of open files. Raises `StartError` if it is too low for the settings."""
        files = _raise_file_limit()
        # The other quarter is for the label store, fetched images and connections being closed.
        most = max(1, files * 3 // 4)
        if settings.max_connections > most:
            raise StartError(
                f"max_connections must be at most {most}, three quarters of the files that this "
                f"process may open; it is {settings.max_connections}: raise `ulimit -n`"
            )
        self._most = settings.max_connections or min(most, _MOST)
        self._most_per_address = settings.max_connections_per_address
        self._open: dict[Connection, str] = {}  # and their addresses
        self._surplus: dict[Connection, None] = {}  # those of `_open` that are for health only
        self._of_address = Counter[str]()
        self._next_search = 0.0  # on the loop's clock
        self._closed = EventCounter[str](self._log)

    def add(self, connection: Connection) -> bool:
        """Adds a connection; returns False if it may ask for health only, or is closed."""
        address = connection.client[0] if connection.client else ""
        limit = self._most_per_address
        same_address = (other for other, known in self._open.items() if known == address)
        is_full = limit is not None and self._of_address[address] >= limit
        is_refused = is_full and not self._close_idle(same_address, 1)
        is_surplus = not is_refused and len(self._open) >= self._most and not self._make_room()
        if is_surplus and len(self._surplus) >= _RESERVE:
            is_refused = not self._close_idle(self._surplus, 1)
        if is_refused:
            self._abort(connection, "refused")
            return False
        if is_surplus:
            self._surplus[connection] = None
        self._open[connection] = address
        self._of_address[address] += 1
        return not is_surplus

    def remove(self, connection: Connection) -> None:
        """Removes a connection, if it is still known."""
        self._surplus.pop(connection, None)
        address = self._open.pop(connection, None)
        if address is not None:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]

    def _make_room(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._next_search:
            return False
        wanted = self._most // _SHED_SHARE + 1
        closed = self._close_idle(self._open, wanted)
        if closed < wanted:
            self._next_search = now + _SEARCH_SECONDS
        return closed > 0

    def _close_idle(self, connections: Iterable[Connection], most: int) -> int:
        """Closes the longest idle ones, half of the idle ones at most; returns their number."""
        idle = [
            (since, number, connection)
            for number, connection in enumerate(connections)
            if (since := connection.find_idle_start()) is not None
        ]
        chosen = heapq.nsmallest(min(most, (len(idle) + 1) // 2), idle)
        for _, _, connection in chosen:
            self._abort(connection, "idle")
        return len(chosen)

    def _abort(self, connection: Connection, reason: str) -> None:
        self.remove(connection)
        connection.abort()
        self._closed.count(reason)

    def _log(self, closed: Counter[str]) -> None:
        fields = {"open": len(self._open), **closed}
        logger.warning("too many connections: some were closed", extra=fields)


def _raise_file_limit() -> int:
    """Lets this process open as many files as permitted; returns their number."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS permits fewer than its hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if files == resource.RLIM_INFINITY else files
