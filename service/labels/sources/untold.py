"""Labels without a text: photos alone say what they mean, as in bundles without an open head."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from service.engine.heads import Head, ZeroHead

if TYPE_CHECKING:
    from service.engine.session_set import MapGraphs


@dataclass(frozen=True)
class Untold:
    """A set of `count` labels; those that have learnt nothing have the score 0."""

    count: int

    name: ClassVar[str] = "examples"
    measured_on: ClassVar[str] = ""  # there is no head that could be measured
    untaught_logit: ClassVar[float] = -np.inf
    vectors = None

    def choose_head(self, chosen: NDArray[np.intp] | None) -> Head:
        return ZeroHead(self.count)

    def needs_tokens(self, *, two_towers: bool) -> bool:
        return False

    def can_draw(self, graphs: "MapGraphs") -> bool:
        return True  # lessons have maps of their own

    def draw(
        self, graphs: "MapGraphs", memory: NDArray[np.float32], rows: NDArray[np.intp]
    ) -> None:
        return None
