"""The rate limit: a token bucket for each caller, in the memory of this process.

A bucket is stored as one number: the time at which it is full again.
"""

import re
import time
from collections import OrderedDict
from itertools import islice

from fastapi import Depends, Request

from service.errors import RateLimited, StartError, quote

_RATE = re.compile(
    r"\s*([0-9]{1,15})\s*(?:/|per)\s*([1-9][0-9]{0,5})?\s*([a-z]+?)s?\s*", re.IGNORECASE
)
_DAY_SECONDS = 86_400
_UNIT_SECONDS = {
    **{"second": 1, "minute": 60, "hour": 3600, "day": _DAY_SECONDS},
    **{"month": 30 * _DAY_SECONDS, "year": 365 * _DAY_SECONDS},
}
# About 20 MB.
_MAX_CALLERS = 100_000
_EVICTION_CANDIDATES = 8
# So that the rounding of summed intervals refuses no request.
_TOLERANCE_SECONDS = 1e-3


class RateLimiter:
    """Allows each caller a burst of the whole rate, then one request at a time as it refills.

    With `max_callers` buckets, a new caller evicts the fullest of the 8 least recently used. So no
    caller is refused because there are many others, and a crowd does not reset a busy caller.
    """

    def __init__(self, rate: str, max_callers: int = _MAX_CALLERS) -> None:
        amount, self._window_seconds = _parse_rate(rate)
        self._seconds_each = self._window_seconds / amount
        self._max_callers = max_callers
        self._full_at: OrderedDict[str, float] = OrderedDict()  # least recently used first

    def count(self, caller: str) -> None:
        """Counts one request; raises `RateLimited` if the caller's bucket is empty."""
        now = time.monotonic()
        if caller not in self._full_at and len(self._full_at) >= self._max_callers:
            self._evict_one()
        full_at = max(self._full_at.get(caller, now), now)
        wait_seconds = full_at + self._seconds_each - now - self._window_seconds
        is_empty = wait_seconds > _TOLERANCE_SECONDS
        self._full_at[caller] = full_at if is_empty else full_at + self._seconds_each
        self._full_at.move_to_end(caller)
        if is_empty:
            raise RateLimited(wait_seconds)

    def _evict_one(self) -> None:
        oldest = list(islice(self._full_at, _EVICTION_CANDIDATES))
        for caller in oldest:  # else busy callers would fill the 8 places
            self._full_at.move_to_end(caller)
        del self._full_at[min(oldest, key=self._full_at.__getitem__)]


async def limit_rate(request: Request) -> None:
    """Counts a request of `request.state.caller`, which the check of the key has set."""
    limiter: RateLimiter | None = request.app.state.rates
    if limiter is not None:
        limiter.count(request.state.caller)


LIMITED = Depends(limit_rate)


def _parse_rate(rate: str) -> tuple[int, int]:
    found = _RATE.fullmatch(rate)
    if found is None or found[3].lower() not in _UNIT_SECONDS or not int(found[1]):
        raise StartError(
            f"rate_limit must be a positive rate such as 100/minute; it is {quote(rate)}"
        )
    return int(found[1]), int(found[2] or 1) * _UNIT_SECONDS[found[3].lower()]
