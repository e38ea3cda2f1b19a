"""Rates: how often one caller may ask, where the service sets a limit.

In: the caller of a request, from `keys.py`. Out: nothing, or 429 with the seconds to wait, as
`rate_limiter.py` counts. Next: the route.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Depends, Request

if TYPE_CHECKING:
    from service.http.security.rate_limiter import RateLimiter


async def limit_rate(request: Request) -> None:
    """Counts a request of a caller that `keys.py` has named."""
    limiter: RateLimiter | None = request.app.state.rates
    if limiter is not None:
        limiter.count(request.state.caller)


LIMITED = Depends(limit_rate)
