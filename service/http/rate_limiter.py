"""The rate limiter: counts what each caller asks, where the service sets a limit.

In: a rate and callers. Out: nothing, or `RateLimited` with the seconds to wait. The counts are in
memory: every process has its own. Imported only where there is a limit. Next: `rates.py`.
"""

from __future__ import annotations

import time

from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from service.errors import StartError
from service.http.request_errors import RateLimited


class RateLimiter:
    """Lets each caller ask so many times in a sliding window."""

    def __init__(self, rate: str) -> None:
        """Reads a rate such as `100/minute`.

        Raises:
            StartError: it is none.
        """
        try:
            self._rate: RateLimitItem = parse(rate)
        except ValueError as error:
            raise StartError("rate_limit: not a rate such as 100/minute") from error
        if not self._rate.amount:
            raise StartError("rate_limit: nobody could ask anything")
        self._window = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def count(self, caller: str) -> None:
        """Counts one request.

        Raises:
            RateLimited: the caller has had as many as it may.
        """
        if not await self._window.hit(self._rate, caller):
            stats = await self._window.get_window_stats(self._rate, caller)
            raise RateLimited(stats.reset_time - time.time())
