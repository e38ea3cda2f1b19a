"""The head of an answer goes out with the first of its body."""

from __future__ import annotations

import asyncio

import pytest

from service.http.transport.head_holder import HeadHolder
from service.http.transport.lingering import LingeringTransport
from tests.service.http.transport.test_lingering import FakeTransport

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture
async def transport() -> FakeTransport:
    return FakeTransport()


def hold_head(transport: asyncio.Transport) -> HeadHolder:
    return HeadHolder(LingeringTransport(transport, 1))


async def test_head_is_written_with_the_first_of_the_body(transport: FakeTransport) -> None:
    holder = hold_head(transport)
    holder.write(HEAD)
    assert transport.calls == []
    holder.write(b"one")
    holder.write(b"two")
    assert transport.calls == [f"write {HEAD.decode()}one", "write two"]


async def test_head_of_an_answer_without_a_body_is_written(transport: FakeTransport) -> None:
    holder = hold_head(transport)
    holder.write(HEAD)
    holder.write(b"")
    assert transport.calls == [f"write {HEAD.decode()}"]


async def test_client_that_waits_for_100_continue_is_told_at_once(transport: FakeTransport) -> None:
    holder = hold_head(transport)
    holder.write(CONTINUE)
    assert transport.calls == [f"write {CONTINUE.decode()}"]
    holder.write(HEAD)
    holder.write(b"body")
    assert transport.calls[1:] == [f"write {HEAD.decode()}body"]


async def test_head_is_not_lost_where_the_answer_breaks_off(transport: FakeTransport) -> None:
    holder = hold_head(transport)
    holder.write(HEAD)
    assert not holder.is_closing()
    holder.close()
    assert transport.calls == [f"write {HEAD.decode()}", "close"]
    assert holder.is_closing()
