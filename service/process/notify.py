"""Messages to systemd, as of sd_notify(3). Without `NOTIFY_SOCKET` nothing is sent."""

import logging
import os
import socket
import time

# How long a full queue of systemd may block the event loop; a lost READY=1 would end the service.
_SEND_SECONDS = 1.0

logger = logging.getLogger(__name__)


def notify(*lines: str) -> None:
    """Sends one message; logs a socket that cannot be reached."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_SEND_SECONDS)
            is_abstract = address.startswith("@")
            sender.sendto("\n".join(lines).encode(), "\0" * is_abstract + address[is_abstract:])
    except OSError as error:
        logger.warning("systemd does not get %s: %s", lines[0], error.strerror or error)


def notify_reloading() -> None:
    """Begins a reload; systemd compares the time with that of its SIGHUP (Type=notify-reload)."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reloading")


def notify_reloaded(*, done: bool) -> None:
    """Ends a reload, also one that failed: systemd waits for it."""
    status = "reloaded" if done else "the reload failed, and the earlier model stays in use"
    notify("READY=1", f"STATUS={status}")


class Watchdog:
    """Sends a beat every half of `WATCHDOG_USEC`, if systemd watches this process."""

    def __init__(self) -> None:
        is_watched = os.environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        limit = os.environ.get("WATCHDOG_USEC", "") if is_watched else ""
        self._seconds = int(limit) / 2e6 if limit.isdecimal() else None
        self._next = 0.0  # of `time.monotonic`

    def beat(self) -> float | None:
        """Sends a beat if one is due; returns the seconds until the next, None if there is none."""
        now = time.monotonic()
        if self._seconds is not None and now >= self._next:
            self._next = now + self._seconds
            notify("WATCHDOG=1")
        return None if self._seconds is None else self._next - now
