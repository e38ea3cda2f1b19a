"""A connection's answers: head and body in one write; at its close, input is dropped for a time."""

import asyncio
import fcntl
import socket
import sys
import termios
from contextlib import suppress
from typing import Any

# Of unread answers, while there are as many bytes: 12 MB, the maps of 16 photos, take 13 minutes.
_LEAST_BYTES_PER_SECOND = 16384
# Of an answer in the kernel beyond what the client's window takes. Without a limit, the kernel took
# 2 MB for each client that did not read; these bytes were in no budget and watched by no timeout.
_MAX_UNSENT_BYTES = 131_072
# At the end of the process: enough for an answer to reach its client.
_SHUTDOWN_LINGER_SECONDS = 0.5
# uvicorn writes it before the head of the answer.
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# A longer body leaves the process in several pieces anyway, and joining would copy it.
_MAX_JOINED_BYTES = 262_144


class LingeringTransport:
    """A transport whose `close` lingers while the client sends; `close_now` does not.

    `client_sends` is whether the rest of a request's body is still to come. While it `lingers`,
    input is to be dropped, and `write` does nothing. A client that reads too slowly while it is
    watched, or after the close, is cut off. If `expects_head`, the next piece is the head of an
    answer: it is written with the piece after it.
    """

    def __init__(self, transport: asyncio.Transport, linger_seconds: float) -> None:
        self.client_sends = False
        self.lingers = False
        self.expects_head = False
        self._head = b""
        self._transport = transport
        self._linger_seconds = self._reading_seconds = linger_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._reading_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        opened = transport.get_extra_info("socket")  # None after the close
        self._file = -1 if opened is None else opened.fileno()
        with suppress(OSError, AttributeError):  # a Unix socket, a system without the option
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MAX_UNSENT_BYTES)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the transport
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self.lingers or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if self.lingers:
            return
        if self.expects_head and data != _CONTINUE:
            self._head, self.expects_head = data, False
            return
        if self._head:
            head, self._head = self._head, b""
            if len(data) <= _MAX_JOINED_BYTES:
                data = head + data
            else:
                self._transport.write(head)
        # Until Python 3.12, asyncio copies what the socket does not take, of bytes twice.
        self._transport.write(memoryview(data))

    def close(self) -> None:
        if self._head:
            self.write(b"")
        if not self.client_sends or self._transport.is_closing():
            self.close_now()
        elif not self.lingers:
            self.lingers = True
            self._transport.write_eof()
            self._transport.resume_reading()
            self._start_timer()

    def close_now(self) -> None:
        if self._reading_timer is None and self._transport.get_write_buffer_size():
            self.watch_reading()
        self._transport.close()  # waits until everything is sent

    def watch_reading(self) -> None:
        self._unread_bytes = self._count_unread()
        loop = asyncio.get_running_loop()
        self._reading_timer = loop.call_later(self._reading_seconds, self._check_reading)

    def stop_watching(self) -> None:
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None

    def _check_reading(self) -> None:
        expected = min(self._unread_bytes, _LEAST_BYTES_PER_SECOND * self._reading_seconds)
        if self._unread_bytes - self._count_unread() >= expected:
            self.watch_reading()
        else:
            self._transport.abort()

    def _count_unread(self) -> int:
        # With what the kernel holds: it takes more from us in steps of a megabyte only.
        count = self._transport.get_write_buffer_size()
        with suppress(OSError, ValueError):
            held = fcntl.ioctl(self._file, termios.TIOCOUTQ, bytes(4))
            count += int.from_bytes(held, sys.byteorder)
        return count

    def end_request(self) -> None:
        self.client_sends = False
        if self.lingers:
            self.close_now()

    def limit_linger(self) -> None:
        self._linger_seconds = min(self._linger_seconds, _SHUTDOWN_LINGER_SECONDS)
        if self._timer is not None:
            self._timer.cancel()
            self._start_timer()

    def stop(self) -> None:
        self.stop_watching()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._linger_seconds, self._transport.abort)
