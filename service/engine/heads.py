"""Types of the engine's inputs and outputs; no ONNX Runtime, so that commands start fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Embeddings: TypeAlias = NDArray[np.float32]
"""Text embeddings, float32 [L, E]."""
QueryArray: TypeAlias = NDArray[np.float32]
"""Label queries of the open head, float32 [L, K]."""
KeyArray: TypeAlias = NDArray[np.float32]
"""Label keys of the open head's screen, float32 [L, Z]."""
LogitsArray: TypeAlias = NDArray[np.float32]

LABELS_PER_RUN = 1024
"""Most labels in one run of a graph: memory grows with images x labels, so this bounds it. Smaller
runs of the open head would recompute keys and values from the tokens more often."""


@dataclass(frozen=True, eq=False)
class LabelVectors:
    """What the graphs know of L labels; `keys` is None without a screen."""

    queries: QueryArray
    keys: KeyArray | None = None


@dataclass(frozen=True, eq=False)
class SomeQueries:
    """The `chosen` rows of a matrix [L, K]; only slices copy, so a queued request has no copy."""

    queries: QueryArray
    chosen: NDArray[np.intp]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.chosen)

    def __getitem__(self, rows: slice) -> QueryArray:
        """Returns a copy."""
        return self.queries[self.chosen[rows]]


@dataclass(frozen=True, eq=False)
class Wanted:
    """What a question needs of a label's calibrated logit, scale * logit + shift."""

    scale: NDArray[np.float32] | None = None  # [L]; None is 1
    shift: NDArray[np.float32] | None = None  # [L]; None is 0
    floors: NDArray[np.float32] | float | None = None  # [L], logits of the thresholds
    limit: int | None = None  # most labels in the answer
    chosen: NDArray[np.intp] | None = None  # ascending positions to choose from; None is all


@dataclass(frozen=True, eq=False)
class ScreenedQueries:
    """Queries [L, K], of which the open head scores only those of labels that may be wanted.

    `keys` [L, Z] are the screen's, of the same labels.
    """

    queries: QueryArray
    keys: KeyArray
    wanted: Wanted

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.queries)


Head: TypeAlias = QueryArray | SomeQueries | ScreenedQueries | None
"""The head to run for a label set: queries for the open head, or None for the trained head."""


class HeadResults(NamedTuple):
    """Results of one image, in the order of its heads."""

    logits: tuple[LogitsArray, ...]  # [L] or [N]; of `ScreenedQueries` of the kept labels
    memories: tuple[NDArray[np.float32], ...] = ()  # [S, D], if the image is explained
    kept: tuple[NDArray[np.intp] | None, ...] = ()  # ascending positions, of `ScreenedQueries`
