"""The common base of both clients: checked arguments, retries and errors."""

import random
import re
import time
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx2

from ml_decoder_client.answers import ClientError, ServiceUnreachable, UnreadableAnswer
from ml_decoder_client.calls import Call
from ml_decoder_client.reading import ResultT

Outcome = httpx2.Response | httpx2.RequestError
ErrorT = TypeVar("ErrorT", bound=Exception)

_MAX_TIMEOUT_SECONDS = 86_400.0
_MAX_PORT = 65_535
_KEY = re.compile("[!-~]([ -~]*[!-~])?")

# After these the service has certainly not done the request.
_REFUSED = {429, 503}
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout)
# After these it may have done it. Timeouts are final: a second request would be as slow.
_BAD_GATEWAY = 502
_LOST = (httpx2.ReadError, httpx2.RemoteProtocolError, httpx2.WriteError)
_FIRST_WAIT_SECONDS = 1.0
_MAX_WAIT_SECONDS = 300.0


class Connection:
    """Arguments of both clients."""

    _http: httpx2.Client | httpx2.AsyncClient

    def __init__(
        self,
        url: str = "http://localhost:8000",
        *,
        api_key: str | None = None,
        timeout_seconds: float = 60.0,
        retries: int = 5,
        connections: int = 16,
    ) -> None:
        """Checks the arguments, or raises ValueError; connects with the first call.

        `timeout_seconds`, at most a day, limits the time without a byte in one attempt; writing a
        label set adds 20 ms a label. Calls are retried after 429, 502, 503 or a broken connection,
        after `Retry-After` (at most 300 s) or exponential backoff with jitter; writes with
        `if_version` are not if the service may have done them.
        """
        for name, number, least in (("retries", retries, 0), ("connections", connections, 1)):
            if number < least:
                raise ValueError(f"{name} must be at least {least}; it is {number}")
        if not 0 < timeout_seconds <= _MAX_TIMEOUT_SECONDS:
            limit = f"above 0 and at most {_MAX_TIMEOUT_SECONDS:g}"
            raise ValueError(f"timeout_seconds must be {limit}; it is {timeout_seconds:g}")
        if not (api_key is None or _KEY.fullmatch(api_key)):
            raise ValueError("api_key must be printable ASCII without spaces at its ends")
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        address = _read_url(url)
        # As `auth` and not in the URL, which errors and httpx2's log show.
        auth = (address.username, address.password) if address.userinfo else None
        headers = {}
        if api_key is not None:
            # A proxy's user and password take the header Authorization.
            headers = {"X-API-Key": api_key} if auth else {"Authorization": f"Bearer {api_key}"}
        self._options: dict[str, Any] = {
            "base_url": address.copy_with(userinfo=b""),
            "auth": auth,
            "headers": headers,
            "verify": httpx2.create_ssl_context(),
            "limits": httpx2.Limits(
                max_connections=connections, max_keepalive_connections=connections
            ),
            "trust_env": False,  # `HTTP_PROXY` and its like have no effect
        }
        self._open()

    def _open(self) -> None:
        raise NotImplementedError

    def _build_request(self, call: Call[Any]) -> httpx2.Request:
        # No timeout for a free connection: the calls that use them have timeouts.
        read = self._timeout_seconds + call.extra_seconds
        timeout = httpx2.Timeout(self._timeout_seconds, read=read, pool=None)
        return self._http.build_request(call.method, call.path, timeout=timeout, **call.options)

    def _finish(self, call: Call[ResultT], attempts: "Attempts") -> ResultT:
        if isinstance(outcome := attempts.outcome, httpx2.RequestError):
            raise _explain(outcome, self._http.base_url) from outcome
        return call.read_result(outcome, maybe_done=attempts.maybe_done)


@dataclass
class Turns:
    """The calls of one `predict_many`: while one is retried, the others wait for it."""

    lock: Any  # of threads, or of asyncio
    fatal: Exception | None = None  # the first error that all photos have

    def check(self, error: ErrorT) -> ErrorT:
        """Returns the error of one photo; raises `fatal`, if there is one."""
        if getattr(error, "status", 0) == 401 or isinstance(error.__cause__, _NOT_SENT):
            self.fatal = self.fatal or error
        if self.fatal is not None:
            raise self.fatal
        return error


ALONE = Turns(nullcontext())


class Attempts:
    """The attempts of one call: the last outcome, and if and when there is another."""

    maybe_done = False  # whether an attempt before the last may have succeeded
    outcome: Outcome
    next_at: float | None  # by `time.monotonic`; None if `outcome` is the last

    def __init__(self, retries: int, request: httpx2.Request) -> None:
        self.request = request
        self._retries = retries
        # If the first attempt of such a write succeeded, the second would fail.
        self._is_conditional = "If-Match" in request.headers
        self._made = 0

    def record(self, outcome: Outcome) -> float | None:
        """Returns the seconds until the next attempt, or None if `outcome` is the last."""
        self.outcome, self.next_at = outcome, None
        if isinstance(outcome, httpx2.Response):
            is_safe = outcome.status_code in _REFUSED
            is_lost = outcome.status_code == _BAD_GATEWAY
            demanded = _read_retry_after(outcome.headers.get("Retry-After", ""))
        else:
            is_safe, is_lost = isinstance(outcome, _NOT_SENT), isinstance(outcome, _LOST)
            demanded = 0.0
        may_retry = is_safe or (is_lost and not self._is_conditional)
        if self._made >= self._retries or not may_retry:
            return None
        self.maybe_done |= is_lost
        backoff = _FIRST_WAIT_SECONDS * 2 ** min(self._made, 10)
        self._made += 1
        wait = min(demanded or backoff * random.random(), _MAX_WAIT_SECONDS)
        self.next_at = time.monotonic() + wait
        return wait


def _read_url(url: str) -> httpx2.URL:
    try:
        address = httpx2.URL(url)
        address.raw_host.decode().encode("idna")  # as name resolution does
    except (httpx2.InvalidURL, ValueError):
        address = httpx2.URL()
    # Sockets take port 65,616 for 80.
    has_port = address.port is None or 0 < address.port <= _MAX_PORT
    if not (address.scheme in ("http", "https") and address.host and has_port) or address.query:
        shown = url.rpartition("@")[2].partition("?")[0]  # without a password
        raise ValueError(f"invalid url {shown!r}: use one like http://localhost:8000")
    return address


def _read_retry_after(text: str) -> float:
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0.0, (moment - datetime.now(UTC)).total_seconds())
    except ValueError:
        return 0.0


def _explain(error: httpx2.RequestError, url: httpx2.URL) -> ClientError:
    match error:
        case httpx2.DecodingError():
            return UnreadableAnswer(f"cannot decode the response of {url}: {error}")
        case httpx2.TimeoutException():
            timeouts = error.request.extensions["timeout"]
            seconds = timeouts["read" if isinstance(error, httpx2.ReadTimeout) else "connect"]
            reason = f"no response from {url} within {seconds:g} s (timeout_seconds)"
        case httpx2.ConnectError():
            reason = f"cannot connect to {url}: {error}"
        case _:
            reason = f"connection to {url} lost: {str(error) or type(error).__name__}"
    return ServiceUnreachable(reason)
