"""Load: the figures of one run of `ml-decoder bench`.

In: latencies and errors, one by one. Out: rates and quantiles.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Load:
    """What a run measured.

    Attributes:
        seconds: how long it took.
        latencies_ms: of each good answer, from sending the photo to having the labels.
        errors: number of answers that were errors, by code.
    """

    seconds: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def per_second(self) -> float:
        """Good answers a second."""
        return len(self.latencies_ms) / self.seconds

    def find_latency(self, share: float) -> float:
        """Returns the milliseconds within which this share (0..1) of the answers came."""
        return float(np.quantile(self.latencies_ms, share)) if self.latencies_ms else float("nan")

    def dump(self) -> dict[str, object]:
        """Returns the figures as JSON values."""
        latencies = {
            f"p{round(100 * share)}_ms": round(self.find_latency(share), 2)
            for share in (0.5, 0.95, 0.99)
            if self.latencies_ms
        }
        return {
            "seconds": round(self.seconds, 2),
            "answers": len(self.latencies_ms),
            "answers_per_second": round(self.per_second, 2),
            **latencies,
            "errors": dict(self.errors),
        }
