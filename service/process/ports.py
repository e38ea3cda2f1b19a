"""The ports of a service: opened, shared by worker processes, and why one cannot be opened."""

import errno
import ipaddress
import logging
import socket
from contextlib import ExitStack

from service.errors import StartError
from service.http.security.proxies import read_root_path
from service.process.notify import notify
from service.settings import Settings

_ALL_INTERFACES = frozenset({"0.0.0.0", "::"})
# Of a host with several addresses, such as localhost, some may not exist here.
_NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})

logger = logging.getLogger(__name__)


class Ports:
    """The sockets of `port`, one for each address of the host, and those of `metrics_port`.

    If the port is `shared`, these sockets reserve it and do not listen: the workers listen on the
    sockets that `share` binds. These have no SO_REUSEPORT, so they cannot be bound to a port where
    another service listens.
    """

    def __init__(self, settings: Settings, *, shared: bool = False) -> None:
        """Opens and logs the ports. Raises `StartError` if one cannot be opened."""
        self._settings = settings
        self.metrics: list[socket.socket] = []
        if settings.metrics_port is not None:
            self.metrics = _open(settings.host, settings.metrics_port, "metrics-port")
            for listener in self.metrics:
                listener.setblocking(False)  # another worker may accept first
            fields = {"address": settings.host, "port": self.metrics[0].getsockname()[1]}
            logger.info("metrics", extra=fields)
        self.sockets = _open(settings.host, settings.port, "port", listen=not shared)
        self._log_listening()

    def share(self) -> list[socket.socket]:
        """Binds a socket of one process to each address; Linux spreads connections over all."""
        shared = []
        for reserving in self.sockets:
            listener = _make_socket(reserving.family)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(reserving.getsockname())
            shared.append(listener)
        return shared

    def announce(self) -> None:
        """Logs the URL that a browser on this machine opens, and notifies systemd."""
        host = self._settings.host
        host = "127.0.0.1" if host in _ALL_INTERFACES else _bracket(host)
        root_path = read_root_path(self._settings.root_path)
        port = self.sockets[0].getsockname()[1]
        url = f"http://{host}:{port}{root_path}/"
        logger.info("serving", extra={"url": url})
        notify("READY=1", f"STATUS=serving {url}")

    def _log_listening(self) -> None:
        for listener in self.sockets:
            address, port = listener.getsockname()[:2]
            logger.info("listening", extra={"address": address, "port": port, "state": "loading"})
        if self._settings.predict_keys is None and not _is_local(self._settings.host):
            if self._settings.admin_keys is None:
                logger.warning("no keys are set: any client may predict and change label sets")
            else:
                logger.warning("no predict_keys are set: any client may predict")


def _open(host: str, port: int, flag: str, *, listen: bool = True) -> list[socket.socket]:
    try:
        return _bind_all(host, port, listen=listen)
    except OSError as error:
        setting = f"set another --{flag} or ML_DECODER_{flag.replace('-', '_').upper()}"
        reasons = {
            errno.EADDRNOTAVAIL: "the host is not an address of this machine; set another --host "
            "or ML_DECODER_HOST",
            errno.EADDRINUSE: f"the port is already in use; {setting}",
            errno.EACCES: f"permission denied; {setting} of at least 1024",
        }
        code = errno.EADDRNOTAVAIL if isinstance(error, socket.gaierror) else error.errno
        reason = reasons.get(code or 0) or error.strerror or "the port cannot be opened"
        raise StartError(f"cannot listen on {_bracket(host)}:{port}: {reason}") from error


def _bind_all(host: str, port: int, *, listen: bool = True) -> list[socket.socket]:
    """Binds a socket to each address of the host; `::` means IPv4 too.

    With one socket for both families, IPv4 clients would have addresses like ::ffff:127.0.0.1,
    which `FORWARDED_ALLOW_IPS` does not match.
    """
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    given = port
    with ExitStack() as opened:  # closes them if one fails
        for name in ("::", "0.0.0.0") if host == "::" else (host,):
            known = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, _, _, _, (address, _, *rest) in dict.fromkeys(known):
                try:
                    bound = opened.enter_context(_make_socket(family))
                    bound.bind((address, port, *rest))
                except OSError as error:
                    if error.errno == errno.EADDRINUSE and not given:
                        return _bind_all(host, 0, listen=listen)  # in use for one family only
                    if error.errno not in _NOT_HERE:
                        raise
                    failure = error
                    continue
                if listen:
                    bound.listen()
                port = bound.getsockname()[1]  # with port 0, the others get that of the first
                sockets.append(bound)
        if not sockets and failure is not None:
            raise failure
        opened.pop_all()
    return sockets


def _make_socket(family: int) -> socket.socket:
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return made


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
