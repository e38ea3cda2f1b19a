"""The service's port: opened, shared by worker processes, and why it cannot be opened."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import ExitStack

from service.errors import StartError
from service.settings import Settings

# Of a host with several addresses, such as localhost, some may not exist here.
_NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def open_dual_stack(settings: Settings) -> list[socket.socket] | None:
    """Returns sockets of IPv6 and IPv4 if the host is `::`; else None: uvicorn opens its own.

    uvicorn would listen on IPv6 only. With one socket for both, IPv4 clients have addresses like
    ::ffff:127.0.0.1, which `FORWARDED_ALLOW_IPS` does not match.
    """
    if settings.host != "::":
        return None
    try:
        six = socket.create_server(("::", settings.port), family=socket.AF_INET6)
        return [six, socket.create_server(("0.0.0.0", six.getsockname()[1]))]
    except OSError as error:
        raise explain_port(settings, error) from error


def reserve_port(settings: Settings) -> list[socket.socket]:
    """Binds a socket to each address of the host; `share_port` binds others to the same.

    The sockets do not listen, and have no SO_REUSEPORT: a port where another service listens is
    taken. Raises `StartError` then, or if the host has no address here.
    """
    try:
        return _bind_all(settings.host, settings.port)
    except OSError as error:
        raise explain_port(settings, error) from error


def share_port(reserved: Sequence[socket.socket]) -> list[socket.socket]:
    """Binds another socket to each reserved address.

    Linux spreads new connections over the sockets that listen, by a hash of their addresses. With
    one socket for all processes, one of two event loops accepted up to 32 of 32 connections.
    """
    shared = []
    for each in reserved:
        own = _make_socket(each.family)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        own.bind(each.getsockname())
        shared.append(own)
    return shared


def _bind_all(host: str, port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    with ExitStack() as opened:  # closes them if one fails
        for name in ("::", "0.0.0.0") if host == "::" else (host,):
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, _, _, _, (address, _, *rest) in found:
                try:
                    own = opened.enter_context(_make_socket(family))
                    own.bind((address, port, *rest))
                except OSError as error:
                    if error.errno not in _NOT_HERE:
                        raise
                    failure = error
                    continue
                port = own.getsockname()[1]  # with port 0, the others get that of the first
                sockets.append(own)
        if not sockets and failure is not None:
            raise failure
        opened.pop_all()
    return sockets


def _make_socket(family: int) -> socket.socket:
    own = socket.socket(family)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return own


def bracket(host: str) -> str:
    """Returns a host as it is written in a URL."""
    return f"[{host}]" if ":" in host else host


def explain_port(settings: Settings, error: BaseException | None) -> StartError:
    """Returns the error for an operator whose port cannot be opened."""
    code = getattr(error, "errno", None)
    if isinstance(error, socket.gaierror) or code == errno.EADDRNOTAVAIL:
        reason = "the host is not an address of this machine; set another --host or ML_DECODER_HOST"
    elif code == errno.EADDRINUSE:
        reason = "the port is already in use; set another --port or ML_DECODER_PORT"
    elif code == errno.EACCES:
        reason = "permission denied; set a --port or ML_DECODER_PORT of at least 1024"
    else:
        reason = getattr(error, "strerror", None) or "the port cannot be opened"
    return StartError(f"cannot listen on {bracket(settings.host)}:{settings.port}: {reason}")
