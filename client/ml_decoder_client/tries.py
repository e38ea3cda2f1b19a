"""Tries: when a call is sent again, and whether a try that was not the last may have succeeded.

In: how often at most. Out: what `httpx_retries` goes by, and what it remembers of a call. An answer
can be lost after the service has done what was asked. Sent again, a prediction, a registration
and a replacement come to the same; a deletion finds nothing to delete; a write with `if_version`
would be refused because of its own success. Next: `blocking.py` and `awaiting.py`.
"""

from __future__ import annotations

from typing import cast

import httpx
from httpx_retries import Retry

# After these the service has surely done nothing.
_REFUSED = (429, 503)
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout)
# After these it may have. A time-out is not among them: who was too slow for one request is not
# helped by a second.
_LOST_BY_PROXY = (502,)
_LOST = (httpx.ReadError, httpx.RemoteProtocolError, httpx.WriteError)

_EXTENSION = "retry"  # httpx_retries' name of it
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 300.0


class Tries(Retry):
    """The tries of one call so far, and when there is another.

    Attributes:
        in_doubt: whether one that was followed by another may have succeeded.
    """

    in_doubt = False

    def without_doubt(self) -> Retry:
        """Returns those alone that follow a try which has surely done nothing."""
        return self.copy_with(status_forcelist=_REFUSED, retry_on_exceptions=_NOT_SENT)

    def make_extensions(self, *, conditional: bool) -> dict[str, Retry]:
        """Returns the extensions of a call's request, which hand its tries to the transport.

        Args:
            conditional: whether the call would be refused because of its own success.
        """
        return {_EXTENSION: self.without_doubt() if conditional else self}

    def increment(self) -> Tries:
        """Returns the tries with one more begun."""
        more = cast(Tries, super().increment())
        more.in_doubt = self.in_doubt
        return more

    def sleep(self, response: httpx.Response | Exception) -> None:
        """Waits between what came of the last try and the next one."""
        self._note(response)
        super().sleep(response)

    async def asleep(self, response: httpx.Response | Exception) -> None:
        """The same for asyncio."""
        self._note(response)
        await super().asleep(response)

    def _note(self, outcome: httpx.Response | Exception) -> None:
        if isinstance(outcome, httpx.Response):
            self.in_doubt |= outcome.status_code not in _REFUSED
        else:
            self.in_doubt |= not isinstance(outcome, _NOT_SENT)


def make_tries(retries: int) -> Tries:
    """Returns the tries of a client's calls: after `Retry-After`, else after doubling waits.

    Raises:
        ValueError: `retries` is negative.
    """
    if retries < 0:
        raise ValueError("retries must be at least 0")
    return Tries(
        total=retries,
        allowed_methods=("GET", "POST", "PUT", "DELETE"),
        status_forcelist=_REFUSED + _LOST_BY_PROXY,
        retry_on_exceptions=_NOT_SENT + _LOST,
        backoff_factor=_FIRST_WAIT_SECONDS,
        max_backoff_wait=_LONGEST_WAIT_SECONDS,
    )


def was_in_doubt(response: httpx.Response) -> bool:
    """Returns whether a try before the one that was answered may have succeeded."""
    tries = response.extensions.get(_EXTENSION)
    return isinstance(tries, Tries) and tries.in_doubt
