"""The body budget: how many bytes of all requests together may lie in memory.

In: bytes of a body, or of a photo that is fetched, as they arrive. Out: nothing, or a refusal. One
body has its own limit in `uploads.py`; this one stops a thousand clients who all stay just below
it. A request holds its bytes until it is answered. Next: `uploads.py` and `fetching.py`, which
count.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import QueueFull, StartError
from service.settings import Settings


class BodyBudget:
    """Bytes that are free to be held; belongs to one event loop."""

    def __init__(self, limit_bytes: int) -> None:
        """Starts with all of them free."""
        self.free_bytes = limit_bytes


def open_budget(settings: Settings) -> BodyBudget:
    """Returns the budget of the settings.

    Raises:
        StartError: the largest body would never have room, and its client try again for ever.
    """
    held, body = settings.max_held_bytes, settings.max_body_bytes
    if held < body:
        raise StartError(f"max_held_bytes must be at least max_body_bytes ({body}); it is {held}")
    return BodyBudget(settings.max_held_bytes)


class HeldBody:
    """What one request holds of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        """Holds nothing yet."""
        self._budget = budget
        self._held_bytes = 0

    def grow(self, count: int) -> None:
        """Takes so many bytes more.

        Raises:
            QueueFull: other requests hold them.
        """
        if count > self._budget.free_bytes:
            raise QueueFull("too many bytes of bodies in memory")
        self._budget.free_bytes -= count
        self._held_bytes += count

    def release(self) -> None:
        """Gives everything back."""
        self._budget.free_bytes += self._held_bytes
        self._held_bytes = 0


class HoldBodies:
    """ASGI middleware: lets each request hold bytes of its body until it is answered."""

    def __init__(self, app: ASGIApp, budget: BodyBudget) -> None:
        """Wraps `app`."""
        self._app = app
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        held = HeldBody(self._budget)
        scope.setdefault("state", {})["held_body"] = held
        try:
            await self._app(scope, receive, send)
        finally:
            held.release()
