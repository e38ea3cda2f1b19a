"""Types of the engine's inputs and outputs; no ONNX Runtime, so that commands start fast."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from service.stages import Stage

Images: TypeAlias = NDArray[np.uint8]
"""Prepared images, uint8 [B, H, W, 3], RGB."""
Embeddings: TypeAlias = NDArray[np.float32]
"""Text embeddings, float32 [L, E]."""
QueryArray: TypeAlias = NDArray[np.float32]
"""Label queries of the open head, float32 [L, K]."""
Keys: TypeAlias = Mapping[str, NDArray[Any]]
"""Inputs of the screened head apart from the queries: arrays [L, ...] by input name."""
LogitsArray: TypeAlias = NDArray[np.float32]

LABELS_PER_RUN = 1024
"""Most labels in one run of a graph: memory grows with images x labels, so this bounds it. Smaller
runs of the open head would recompute keys and values from the tokens more often."""
LONG_LABELS = 10_000
"""A screened head of more labels, of which most are needed, is not scored in its batch:
on a core of a CPU, each label takes 13 us."""
# In labels that the open head scores in the time: 0.55 us for each label of the screen, and these.
_SCREENED_SHARE, _MIN_SCREENED = 24, 90


@dataclass(frozen=True, eq=False)
class LabelVectors:
    """Queries and keys of L labels; `keys` is None without a screen."""

    queries: QueryArray
    keys: Keys | None = None

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Queries and keys by the names of inputs."""
        return {"queries": self.queries, **(self.keys or {})}


@dataclass(frozen=True, eq=False)
class SomeQueries:
    """The `chosen` rows of a matrix [L, K]. Rows are copied on slicing, not on queueing."""

    queries: QueryArray
    chosen: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, rows: slice) -> QueryArray:
        """Returns a copy."""
        return self.queries[self.chosen[rows]]


@dataclass(frozen=True, eq=False)
class ScreenedQueries:
    """Labels of a set, of which the screened head scores those that may be in an answer.

    An answer needs the `wanted` best by scale * logit + shift, and all of 0 or more.
    """

    queries: QueryArray
    keys: Keys
    scale: NDArray[np.float32]  # [L]
    shift: NDArray[np.float32]  # [L], finite
    wanted: int

    def __len__(self) -> int:
        return len(self.queries)


@dataclass(frozen=True)
class ZeroHead:
    """Runs no graph and gives zeros [L], for L labels that the photo's embedding scores."""

    count: int

    def __len__(self) -> int:
        return self.count


class TrainedHead(Enum):
    """The trained head, which scores all of its N labels. An enum, to have one instance."""

    TRAINED = auto()


TRAINED_HEAD: Final = TrainedHead.TRAINED

Head: TypeAlias = TrainedHead | QueryArray | SomeQueries | ScreenedQueries | ZeroHead
"""The head to run for a label set: queries are for the open head, or the screened one."""


def count_scored(heads: Sequence[Head]) -> int:
    """Returns how many labels the open head scores in the time of these; other heads count 0."""
    screened = [len(head) for head in heads if isinstance(head, ScreenedQueries)]
    others = (len(head) for head in heads if isinstance(head, np.ndarray | SomeQueries))
    return sum(_MIN_SCREENED + count // _SCREENED_SHARE for count in screened) + sum(others)


class ScreenedLogits(NamedTuple):
    """Logits of the k labels of `ScreenedQueries` that were scored."""

    logits: LogitsArray  # [k]
    positions: NDArray[np.intp]  # [k], ascending


class HeadResults(NamedTuple):
    """Results of one image, in the order of its heads."""

    # [L] or [N], or of `ScreenedQueries`: [0] if more than `LONG_LABELS` have to be scored.
    logits: tuple[LogitsArray | ScreenedLogits, ...]
    memories: tuple[NDArray[np.float32], ...] = ()  # [S, D], if the image is explained
    # Length 1, [C]: the mean token, or the first of two towers; if the image is embedded.
    embedding: NDArray[np.float32] | None = None
    tokens: NDArray[np.float32] | None = None  # [S, C], if it is embedded and explained
    stages: tuple[Stage, ...] = ()  # of the whole batch
