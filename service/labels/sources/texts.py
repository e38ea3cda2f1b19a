"""Labels that are queries of the open head, made of their texts or embeddings."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from service.engine.heads import Head, LabelVectors, SomeQueries
from service.labels.sources.source import Maps

if TYPE_CHECKING:
    from service.engine.session_set import MapGraphs


@dataclass(frozen=True, eq=False)
class Texts:
    """The queries [L, K] of a set, and its keys if it can be screened."""

    vectors: LabelVectors

    name: ClassVar[str] = "zero_shot"
    measured_on: ClassVar[str] = "--open-photos FOLDER"
    untaught_logit: ClassVar[float] = 0.0

    def choose_head(self, chosen: NDArray[np.intp] | None) -> Head:
        """Returns the queries: a request for less than half of a set copies its rows.

        Others share the matrix, and with it a run.
        """
        queries = self.vectors.queries
        if chosen is None or 2 * len(chosen) >= len(queries):
            return queries
        return SomeQueries(queries, chosen)

    def needs_tokens(self, *, two_towers: bool) -> bool:
        """Returns False for two towers, whose embeddings share a space."""
        return not two_towers

    def can_draw(self, graphs: "MapGraphs") -> bool:
        return graphs.open is not None

    def draw(
        self, graphs: "MapGraphs", memory: NDArray[np.float32], rows: NDArray[np.intp]
    ) -> Maps:
        return graphs.draw(memory, self.vectors.queries[rows])
