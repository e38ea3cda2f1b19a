"""The rate limiter: counts what each caller asks, where the service sets a limit.

In: a rate and callers. Out: nothing, or `RateLimited` with the seconds to wait. The counts are in
memory: every process has its own, in bounded room, and no request looks at more than a few of them
(the storage of the library `limits` looks at all of them each time, and takes any number). Imported
only where there is a limit. Next: `rates.py`.
"""

from __future__ import annotations

import math
import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice

from service.errors import StartError
from service.http.requests.errors import RateLimited

_RATE = re.compile(
    r"\s*([0-9]{1,15})\s*(?:/|per)\s*([1-9][0-9]{0,5})?\s*([a-z]+?)s?\s*", re.IGNORECASE
)
_DAY_SECONDS = 86_400
_UNIT_SECONDS = {
    **{"second": 1, "minute": 60, "hour": 3600, "day": _DAY_SECONDS},
    **{"month": 30 * _DAY_SECONDS, "year": 365 * _DAY_SECONDS},
}
# Some 40 MB.
_MOST_CALLERS = 100_000
# Of so many that have not asked for longest, one is forgotten.
_COMPARED = 8


@dataclass(slots=True)
class _Tally:
    """Requests of one caller in a window, numbered by the clock, and in the one before it."""

    window: int = 0
    current: int = 0
    previous: int = 0

    def weigh(self, now: float) -> float:
        """Returns about how many lie within the length of a window before `now` (in windows)."""
        window = math.floor(now)
        if window != self.window:
            self.previous = self.current if window == self.window + 1 else 0
            self.window, self.current = window, 0
        # Those before are taken for evenly spread.
        return self.previous * (1 - now % 1) + self.current

    def wait_for(self, amount: int, now: float) -> float:
        """Returns how many windows after `now` fewer than `amount` are left of what it weighs."""
        left = 1 - now % 1
        if self.current >= amount:
            return left
        return left - (amount - self.current) / self.previous


class RateLimiter:
    """Lets each caller ask so many times in a sliding window.

    Where there is no room for a new caller, another is forgotten and may begin anew: of a few
    that have not asked for longest, the one that asked least. So nobody is refused because there
    are many; and a busy one is forgotten only beside several that are as busy, which costs more
    requests than it gains.
    """

    def __init__(self, rate: str, most_callers: int = _MOST_CALLERS) -> None:
        """Reads a rate such as `100/minute`; `most_callers` have room.

        Raises:
            StartError: it is none.
        """
        self._amount, self._window_seconds = _read_rate(rate)
        self._most_callers = most_callers
        # Those that have not asked for longest come first.
        self._tallies: OrderedDict[str, _Tally] = OrderedDict()

    def count(self, caller: str) -> None:
        """Counts one request.

        Raises:
            RateLimited: the caller has had as many as it may.
        """
        now = time.monotonic() / self._window_seconds
        tally = self._find(caller, now)
        if tally.weigh(now) >= self._amount:
            raise RateLimited(tally.wait_for(self._amount, now) * self._window_seconds)
        tally.current += 1

    def _find(self, caller: str, now: float) -> _Tally:
        if caller not in self._tallies and len(self._tallies) >= self._most_callers:
            self._forget_one(now)
        tally = self._tallies.setdefault(caller, _Tally())
        self._tallies.move_to_end(caller)
        return tally

    def _forget_one(self, now: float) -> None:
        oldest = list(islice(self._tallies, _COMPARED))
        for caller in oldest:  # where they stayed, the busiest would gather, and shield nobody
            self._tallies.move_to_end(caller)
        del self._tallies[min(oldest, key=lambda caller: self._tallies[caller].weigh(now))]


def _read_rate(rate: str) -> tuple[int, int]:
    found = _RATE.fullmatch(rate)
    if found is None or found[3].lower() not in _UNIT_SECONDS:
        raise StartError("rate_limit: not a rate such as 100/minute")
    amount = int(found[1])
    if not amount:
        raise StartError("rate_limit: a limit of 0 would refuse every request")
    return amount, int(found[2] or 1) * _UNIT_SECONDS[found[3].lower()]
