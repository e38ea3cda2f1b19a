"""How fast the queue drains, measured: `Retry-After` of what the queue has no place for.

In: a note for each answer, and one whenever the service has been idle. Out: seconds until so many
items are done. Next: `admission.py`, which puts them into its `QueueFull`.
"""

from __future__ import annotations

import math
from collections import deque

_REMEMBERED = 256
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 60.0


class DrainRate:
    """Answers a second since the service was last idle, over the last few hundred answers."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._answered: deque[float] = deque([-math.inf], maxlen=_REMEMBERED)

    def note_start(self, now: float) -> None:
        """Notes that work begins after nothing was to be done: idle time is not slowness."""
        self._answered.clear()
        self._answered.append(now)

    def note_answer(self, now: float) -> None:
        """Notes that one item is done."""
        self._answered.append(now)

    def estimate_seconds(self, items: int, now: float) -> float:
        """Returns how long so many items take, from 1 to 60 seconds.

        Args:
            items: how many there are to be done.
            now: second on the clock of the notes; a standstill counts as slowness.
        """
        answers = len(self._answered) - 1
        seconds = now - self._answered[0]
        if answers == 0:  # nothing was answered in this time, so the next one takes longer
            estimate = seconds if math.isfinite(seconds) else _LEAST_SECONDS
        else:
            estimate = items * seconds / answers
        return min(max(estimate, _LEAST_SECONDS), _MOST_SECONDS)
