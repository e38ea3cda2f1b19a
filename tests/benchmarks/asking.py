"""Requests as fast as one process can send them: bytes prepared once, over kept connections.

In: an address and the bytes of a request. Out: a status and the seconds it took. Next:
`soak.py` and `overload.py`, which decide how many at a time.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Self

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def make_request(photo: bytes, query: str = "") -> bytes:
    """Returns a whole `POST /predict` as it goes over the wire."""
    head = f"POST /predict{query} HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\n"
    return f"{head}Content-Length: {len(photo)}\r\n\r\n".encode() + photo


class Client:
    """One kept connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> Self:
        return cls(*await asyncio.open_connection(*address))

    async def ask(self, request: bytes) -> tuple[int, float]:
        """Returns the status of the answer and the seconds until all of it was there."""
        started = time.perf_counter()
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        await self._reader.readexactly(int(length[1]) if length else 0)
        return int(head[9:12]), time.perf_counter() - started

    def close(self) -> None:
        self._writer.close()


def percentile(values: list[float], percent: float) -> float:
    """Returns the value that so many percent of `values` do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
