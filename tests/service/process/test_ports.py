"""Ports that several sockets share, errors of those that cannot be opened, and what is logged."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from service.errors import StartError
from service.process.ports import Ports
from service.settings import Settings

PREDICT, ADMIN = {"predict_keys": "@/predict"}, {"admin_keys": "@/admin"}
OPEN = "no keys are set: any client may predict and change label sets"


@contextmanager
def open_ports(*, shared: bool = False, **settings: Any) -> Iterator[Ports]:
    with ExitStack() as stack:
        ports = Ports(Settings(port=0, **settings), shared=shared)
        for listener in (*ports.sockets, *ports.metrics):
            stack.enter_context(listener)
        yield ports


def test_shared_port_is_taken_for_other_services() -> None:
    with open_ports(shared=True) as ports, ExitStack() as stack:
        shared = [stack.enter_context(listener) for _ in range(2) for listener in ports.share()]
        for listener in shared:
            listener.listen()
        port = ports.sockets[0].getsockname()[1]
        assert {listener.getsockname() for listener in shared} == {("127.0.0.1", port)}
        with pytest.raises(StartError, match=f"127.0.0.1:{port}: the port is already in use"):
            Ports(Settings(port=port))
        # The reserved socket does not listen, so no connection is lost in its queue.
        for _ in range(20):
            socket.create_connection(("127.0.0.1", port)).close()
        accepted = 0
        for listener in shared:
            listener.setblocking(False)
            while True:
                try:
                    stack.enter_context(listener.accept()[0])
                except BlockingIOError:
                    break
                accepted += 1
        assert accepted == 20


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6 here")
def test_double_colon_opens_each_port_for_both_families() -> None:
    with open_ports(host="::", metrics_port=0, shared=True) as ports, ExitStack() as stack:
        for sockets in (ports.sockets, ports.metrics):
            assert [listener.family for listener in sockets] == [socket.AF_INET6, socket.AF_INET]
            assert len({listener.getsockname()[1] for listener in sockets}) == 1
        for listener in ports.share():
            stack.enter_context(listener)


@pytest.mark.parametrize("host", ["none.invalid", "192.0.2.1"])
def test_host_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(StartError, match="not an address of this machine"):
        Ports(Settings(host=host))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6 here")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_port_taken_in_one_of_two_families_is_refused(family: socket.AddressFamily) -> None:
    with socket.create_server(("", 0), family=family) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=rf"\[::\]:{port}: the port is already in use"):
            Ports(Settings(host="::", port=port))


def test_taken_port_of_the_metrics_is_named() -> None:
    with open_ports() as ports:
        port = ports.sockets[0].getsockname()[1]
        with pytest.raises(StartError, match=f":{port}: .* set another --metrics-port"):
            Ports(Settings(port=0, metrics_port=port))


@pytest.mark.parametrize(
    ("host", "keys", "warning"),
    [
        *((host, {}, [OPEN]) for host in ("0.0.0.0", "::")),
        ("0.0.0.0", ADMIN, ["no predict_keys are set: any client may predict"]),
        ("0.0.0.0", PREDICT, []),
        *((host, {}, []) for host in ("127.0.0.1", "localhost")),
    ],
)
def test_public_address_without_keys_to_predict_warns(
    caplog: pytest.LogCaptureFixture, host: str, keys: dict[str, Any], warning: list[str]
) -> None:
    with open_ports(host=host, **keys):
        assert caplog.messages == warning


def test_addresses_and_the_url_to_open_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with open_ports(host="0.0.0.0", root_path="/tags", admin_keys="@/admin") as ports:
        ports.announce()
    port = vars(caplog.records[0])["port"]
    assert vars(caplog.records[0])["address"] == "0.0.0.0"
    assert vars(caplog.records[-1])["url"] == f"http://127.0.0.1:{port}/tags/"
