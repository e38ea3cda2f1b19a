"""Explanations: where in its photo each predicted label was found.

In: the labels of an answer, the selection that they are from, and the memory that each of its
heads kept of the photo. Out: an `Explanation` for each label, the best first. Only labels that
are answered cost anything: what an explanation takes is small, and it runs on the CPU behind the
engine. `overlay.py` draws it for people. Next: `pipeline.py`, which puts both into its answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.bundle.reader import Bundle
from service.engine.session_set import MapGraphs
from service.pipeline.overlay import draw_overlay
from service.pipeline.scoring import ScoredLabel
from service.pipeline.selection import Part, Selection

MapArray = NDArray[np.float32]

MOST_EXPLAINED = 100
"""Most labels of one photo that are explained, the best first; it bounds what a request costs."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """Where a label was found.

    Attributes:
        map: float32 [rows, columns], 0..1, over the part of the upright photo that the model
            sees; the largest value is 1, or all are 0.
        overlay: the map as a PNG file to lay over the whole photo; None where nobody asked.
    """

    map: MapArray
    overlay: bytes | None

    def list_cells(self) -> list[list[float]]:
        """Returns the map as rows of numbers, rounded to what a picture can show."""
        cells: list[list[float]] = np.round(self.map.astype(np.float64), 3).tolist()
        return cells


class Explainer:
    """The graphs of a bundle that draw maps; safe to use from several threads."""

    def __init__(self, bundle: Bundle) -> None:
        """Opens the graphs that there are.

        Raises:
            BundleError: a graph is damaged, or is not what the bundle's format says.
        """
        self._contract = bundle.card.input
        self._graphs = MapGraphs(bundle)

    @property
    def knows_trained(self) -> bool:
        """Whether there are maps of the trained labels."""
        return self._graphs.trained

    @property
    def knows_open(self) -> bool:
        """Whether there are maps of open labels."""
        return self._graphs.open

    def covers(self, selection: Selection) -> bool:
        """Whether every label that may be in the answer can be explained."""
        return all(
            self.knows_trained if part.head is None else self.knows_open for part in selection.parts
        )

    def explain_labels(
        self,
        labels: Sequence[ScoredLabel],
        selection: Selection,
        memories: Sequence[NDArray[np.float32]],
        photo: tuple[int, int],
    ) -> tuple[Explanation, ...]:
        """Explains the best labels of one photo; a map depends on its own label alone.

        Args:
            labels: the answer, best first.
            selection: what it is from.
            memories: of each part of the selection, float32 [S, D].
            photo: width and height of the upright photo, pixels.

        Returns:
            One explanation for each of the first `MOST_EXPLAINED` labels.

        Raises:
            InferenceFailed: ONNX Runtime failed.
        """
        labels = labels[:MOST_EXPLAINED]
        places: dict[int, list[int]] = defaultdict(list)
        for i, label in enumerate(labels):
            places[_find_part(label.label, selection.parts)].append(i)
        maps: dict[int, MapArray] = {}
        for owner, found in places.items():
            names = [labels[i].label for i in found]
            drawn = self._map_part(selection.parts[owner], names, memories[owner])
            maps.update(zip(found, drawn, strict=True))
        wants_overlay = selection.question.explain == "overlay"
        return tuple(
            Explanation(
                maps[i], draw_overlay(maps[i], photo, self._contract) if wants_overlay else None
            )
            for i in range(len(labels))
        )

    def _map_part(self, part: Part, names: list[str], memory: NDArray[np.float32]) -> MapArray:
        """Returns the maps of some labels of one part, float32 [n, rows, columns]."""
        positions = [part.labels.positions[name] for name in names]
        if part.head is None:
            return self._graphs.draw(memory, np.asarray(positions, np.int64))
        assert part.labels.queries is not None
        return self._graphs.draw(memory, part.labels.queries[positions])


def _find_part(name: str, parts: Sequence[Part]) -> int:
    # A name is answered from the first set that it stands in.
    return next(i for i, part in enumerate(parts) if name in part.labels.positions)
