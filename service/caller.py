"""The client of a request, for everything that works for it: rate limits, turns in side threads."""

from contextvars import ContextVar

UNIT_LABELS = 10_000
"""An answer counts one unit of the rate limit for each started 10,000 labels."""


class Caller:
    """The client of a request; calls take turns by its `key`, or else by request. No rate limit."""

    key: str | None = None

    def count_photos(self, photos: int) -> None:
        """Counts the photos of a request once they are read; may raise `RateLimited`."""

    def charge(self, units: int) -> None:
        """Counts what a photo or answer costs beyond one unit; never refuses."""

    def charge_labels(self, labels: int) -> None:
        """Counts what the labels of an answer cost beyond one unit; never refuses."""
        if labels > UNIT_LABELS:
            self.charge((labels - 1) // UNIT_LABELS)


CALLER: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 - it has no state
"""The caller of the request that a task works for."""
