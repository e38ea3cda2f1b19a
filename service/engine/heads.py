"""Which head to run for an image, and the arrays that heads take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Embeddings = NDArray[np.float32]
"""Text embeddings, float32 [L, E]."""
QueryArray = NDArray[np.float32]
"""Label queries of the open head, float32 [L, K]."""


@dataclass(frozen=True, eq=False)
class SomeQueries:
    """A few rows of a matrix of queries; slices copy them, so that a request that waits holds none.

    Attributes:
        queries: float32 [L, K], the whole matrix.
        chosen: the n rows that are meant.
    """

    queries: QueryArray
    chosen: NDArray[np.intp]

    def __len__(self) -> int:
        """The number of rows, n."""
        return len(self.chosen)

    def __getitem__(self, rows: slice) -> QueryArray:
        """Returns a copy of some of the rows, float32 [m, K]."""
        return self.queries[self.chosen[rows]]


Head = QueryArray | SomeQueries | None
"""What the engine runs for one set: the queries [L, K] of the open head, all or some; None is the
trained head."""
