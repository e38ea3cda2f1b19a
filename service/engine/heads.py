"""What the engine takes and returns; without ONNX Runtime, so that commands start fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Embeddings: TypeAlias = NDArray[np.float32]
"""Text embeddings, float32 [L, E]."""
QueryArray: TypeAlias = NDArray[np.float32]
"""Label queries of the open head, float32 [L, K]."""
LogitsArray: TypeAlias = NDArray[np.float32]

LABELS_PER_RUN = 1024
"""Most labels in one run of a graph: memory grows with images x labels, so this bounds it. Smaller
runs of the open head would recompute keys and values from the tokens more often."""


@dataclass(frozen=True, eq=False)
class SomeQueries:
    """Rows of a query matrix; only slices copy them, so that a queued request holds no copy.

    Attributes:
        queries: float32 [L, K], the whole matrix.
        chosen: indices of the n rows.
    """

    queries: QueryArray
    chosen: NDArray[np.intp]

    def __len__(self) -> int:
        """The number of rows, n."""
        return len(self.chosen)

    def __getitem__(self, rows: slice) -> QueryArray:
        """Returns a copy of some of the rows, float32 [m, K]."""
        return self.queries[self.chosen[rows]]


Head: TypeAlias = QueryArray | SomeQueries | None
"""What the engine runs for a label set: queries of the open head, or None, the trained head."""


class HeadResults(NamedTuple):
    """Results of one image, in the order of its heads.

    Attributes:
        logits: float32 [L] or [N] of each head.
        memories: float32 [S, D] of each head if the image is explained, else empty.
    """

    logits: tuple[LogitsArray, ...]
    memories: tuple[NDArray[np.float32], ...] = ()
