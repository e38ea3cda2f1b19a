"""Labels that are columns of the trained head."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from service.engine.heads import TRAINED_HEAD, Head
from service.labels.sources.source import Maps

if TYPE_CHECKING:
    from service.engine.session_set import MapGraphs


class Trained:
    """All labels of a bundle that were trained, in the order of the columns."""

    name: ClassVar[str] = "trained"
    measured_on: ClassVar[str] = "--photos FOLDER"
    untaught_logit: ClassVar[float] = 0.0
    vectors = None

    def choose_head(self, chosen: NDArray[np.intp] | None) -> Head:
        return TRAINED_HEAD

    def needs_tokens(self, *, two_towers: bool) -> bool:
        return True

    def can_draw(self, graphs: "MapGraphs") -> bool:
        return graphs.trained is not None

    def draw(
        self, graphs: "MapGraphs", memory: NDArray[np.float32], rows: NDArray[np.intp]
    ) -> Maps:
        return graphs.draw(memory, rows.astype(np.int64))
