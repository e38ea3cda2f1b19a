"""A transport whose end waits for its client."""

from __future__ import annotations

import asyncio

import pytest

from service.http.transport.lingering import LingeringTransport

pytestmark = pytest.mark.anyio


class FakeTransport(asyncio.Transport):
    """Notes what it is told, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.aborted = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.calls.append(f"write {bytes(data).decode()}")

    def write_eof(self) -> None:
        self.calls.append("write_eof")

    def resume_reading(self) -> None:
        self.calls.append("resume_reading")

    def close(self) -> None:
        self.calls.append("close")

    def is_closing(self) -> bool:
        return "close" in self.calls

    def abort(self) -> None:
        self.aborted.set()

    def get_write_buffer_size(self) -> int:
        return 5


@pytest.fixture
async def transport() -> FakeTransport:
    return FakeTransport()


def begin_request(transport: FakeTransport, linger_seconds: float = 300) -> LingeringTransport:
    """Returns a connection whose client is sending."""
    lingering = LingeringTransport(transport, linger_seconds)
    lingering.client_sends = True
    return lingering


async def test_client_that_sends_nothing_is_not_waited_for(transport: FakeTransport) -> None:
    lingering = begin_request(transport)
    lingering.end_request()
    lingering.write(b"answer")
    lingering.close()
    assert transport.calls == ["write answer", "close"]
    assert not lingering.lingers


async def test_client_that_is_sending_is_read_from_until_its_request_ends(
    transport: FakeTransport,
) -> None:
    lingering = begin_request(transport)
    lingering.write(b"answer")
    lingering.close()
    assert lingering.lingers
    assert lingering.is_closing()
    lingering.write(b"more")
    lingering.close()
    assert transport.calls == ["write answer", "write_eof", "resume_reading"]
    lingering.end_request()
    assert transport.calls[3:] == ["close"]
    lingering.stop()


async def test_client_that_never_ends_is_cut_off(transport: FakeTransport) -> None:
    begin_request(transport, 0.01).close()
    async with asyncio.timeout(30):
        await transport.aborted.wait()


async def test_client_that_is_waited_for_is_cut_off_soon_once_in_a_hurry(
    transport: FakeTransport,
) -> None:
    lingering = begin_request(transport)
    lingering.close()
    lingering.hurry()
    async with asyncio.timeout(30):
        await transport.aborted.wait()


async def test_connection_that_is_lost_is_not_waited_for(transport: FakeTransport) -> None:
    lingering = begin_request(transport, 0.01)
    lingering.close()
    lingering.stop()
    await asyncio.sleep(0.05)
    assert not transport.aborted.is_set()


async def test_client_that_has_had_its_time_is_waited_for_no_more(transport: FakeTransport) -> None:
    begin_request(transport).close_now()
    assert transport.calls == ["close"]


async def test_everything_else_is_asked_of_the_transport(transport: FakeTransport) -> None:
    assert LingeringTransport(transport, 1).get_write_buffer_size() == 5
