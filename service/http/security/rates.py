"""The rate limit: a token bucket for each caller, in the memory of this process.

A bucket is stored as one number: the time at which it is full again. A request counts one unit, or
one for each of its photos, and large photos count several (`pipeline.UNIT_PIXELS`).
"""

import re
import time
from collections import OrderedDict
from itertools import islice

from fastapi import Depends, Request

from service.caller import CALLER, Caller
from service.errors import RateLimited, StartError, quote
from service.http.security.keys import name_address

_RATE = re.compile(r"(?i)\s*([0-9]{1,15})\s*(?:/|per)\s*([1-9][0-9]{0,5})?\s*([a-z]+?)s?\s*")
_UNIT_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
_UNIT_SECONDS |= {"month": 30 * 86_400, "year": 365 * 86_400}
# About 20 MB.
_MAX_CALLERS = 100_000
_EVICTION_CANDIDATES = 8
# So that the rounding of summed intervals refuses no request.
_TOLERANCE_SECONDS = 1e-3


class RateLimiter:
    """Allows each caller a burst of the whole rate, then single units as it refills.

    A request of more units than the whole rate needs a full bucket; the rest is a debt.

    With `max_callers` buckets, a new caller evicts the fullest of the 8 least recently used. So no
    caller is refused because there are many others, and a crowd does not reset a busy caller.
    """

    def __init__(self, rate: str, max_callers: int = _MAX_CALLERS) -> None:
        match = _RATE.fullmatch(rate)
        if match is None or match[3].lower() not in _UNIT_SECONDS or not int(match[1]):
            raise StartError(f"rate_limit must be positive, like 100/minute; it is {quote(rate)}")
        self._amount = int(match[1])
        self._window_seconds = int(match[2] or 1) * _UNIT_SECONDS[match[3].lower()]
        self._seconds_each = self._window_seconds / self._amount
        self._max_callers = max_callers
        self._full_at: OrderedDict[str, float] = OrderedDict()  # least recently used first

    def count(self, caller: str, units: int = 1, *, counted: int = 0) -> None:
        """Counts units after those `counted` of a request. Raises `RateLimited` if it must wait."""
        now = time.monotonic()
        whole = min(counted + units, self._amount) * self._seconds_each
        until_full = max(self._full_at.get(caller, now) - now, 0.0)
        wait_seconds = until_full + whole - self._window_seconds
        if wait_seconds - counted * self._seconds_each > _TOLERANCE_SECONDS:
            self.charge(caller, 0)  # a recent use
            raise RateLimited(wait_seconds)
        self.charge(caller, units)

    def charge(self, caller: str, units: int) -> None:
        """Counts units without refusing them: the caller's next requests wait longer."""
        now = time.monotonic()
        full_at = self._full_at.get(caller)
        if full_at is None and len(self._full_at) >= self._max_callers:
            oldest = list(islice(self._full_at, _EVICTION_CANDIDATES))
            for caller_name in oldest:  # else busy callers would fill the 8 places
                self._full_at.move_to_end(caller_name)
            del self._full_at[min(oldest, key=self._full_at.__getitem__)]
        self._full_at[caller] = max(full_at or now, now) + units * self._seconds_each
        self._full_at.move_to_end(caller)


class LimitedCaller(Caller):
    """The caller of one request, for which `limit_rate` has counted the first photo."""

    def __init__(self, limiter: RateLimiter, key: str) -> None:
        self.key: str = key
        self._limiter = limiter

    def count_photos(self, photos: int) -> None:  # noqa: D102
        if photos > 1:
            self._limiter.count(self.key, photos - 1, counted=1)

    def charge(self, units: int) -> None:  # noqa: D102
        self._limiter.charge(self.key, units)


async def limit_rate(request: Request) -> None:
    """Counts a request of the caller that the check of the key has found, or of its address."""
    limiter: RateLimiter | None = request.app.state.rates
    if limiter is None:
        CALLER.set(Caller())
    else:
        caller = request.scope["state"].get("caller") or name_address(request)
        limiter.count(caller)
        CALLER.set(LimitedCaller(limiter, caller))


LIMITED = Depends(limit_rate)
