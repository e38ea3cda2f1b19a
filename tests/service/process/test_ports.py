"""Ports that several sockets share, and errors of those that cannot be opened."""

import socket
from contextlib import ExitStack

import pytest

from service.errors import StartError
from service.process.ports import reserve_port, share_port
from service.settings import Settings


def test_shared_port_is_taken_for_other_services() -> None:
    with ExitStack() as stack:
        reserved = reserve_port(Settings(port=0))
        shared = [own for _ in range(2) for own in share_port(reserved)]
        for own in (*reserved, *shared):
            stack.enter_context(own)
        for own in shared:
            own.listen()
        port = reserved[0].getsockname()[1]
        assert {own.getsockname() for own in shared} == {("127.0.0.1", port)}
        with pytest.raises(StartError, match=f"127.0.0.1:{port}: the port is already in use"):
            reserve_port(Settings(port=port))
        # The reserved socket does not listen, so no connection is lost in its queue.
        for _ in range(20):
            socket.create_connection(("127.0.0.1", port)).close()
        accepted = 0
        for own in shared:
            own.setblocking(False)
            with ExitStack() as taken:
                while True:
                    try:
                        taken.enter_context(own.accept()[0])
                    except BlockingIOError:
                        break
                    accepted += 1
        assert accepted == 20


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6 here")
def test_double_colon_reserves_one_port_of_both_families() -> None:
    with ExitStack() as stack:
        reserved = [stack.enter_context(own) for own in reserve_port(Settings(host="::", port=0))]
        assert [own.family for own in reserved] == [socket.AF_INET6, socket.AF_INET]
        assert len({own.getsockname()[1] for own in reserved}) == 1
        for own in share_port(reserved):
            stack.enter_context(own)


@pytest.mark.parametrize("host", ["none.invalid", "192.0.2.1"])
def test_host_of_another_machine_cannot_be_reserved(host: str) -> None:
    with pytest.raises(StartError, match="not an address of this machine"):
        reserve_port(Settings(host=host))
