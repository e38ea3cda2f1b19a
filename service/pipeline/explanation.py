"""Attention maps of the labels in an answer, and of no others; they run on the CPU."""

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
from service.pipeline.selection import SelectedLabels, Selection
from service.question import MAX_EXPLAINED

MapArray = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Where a label was found."""

    # [rows, columns] over the part of the upright photo that the model sees. The largest value is
    # 1, or all are 0.
    map: MapArray
    overlay: bytes | None  # the map as a PNG file to lay over the whole photo, if asked for


class Explainer:
    """Computes the maps of a bundle's labels; thread-safe."""

    def __init__(self, bundle: Bundle) -> None:
        self._contract = bundle.card.input
        self._graphs = MapGraphs(bundle)
        self.knows_trained, self.knows_open = self._graphs.trained, self._graphs.open

    def covers(self, selection: Selection) -> bool:
        """Returns whether there are maps of all labels of the selection."""
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
        """Explains the first `MAX_EXPLAINED` labels; raises `InferenceFailed`.

        `memories` are float32 [S, D], one for each part of the selection; `photo` is width and
        height of the upright photo, pixels.
        """
        labels = labels[:MAX_EXPLAINED]
        rows: dict[int, list[int]] = defaultdict(list)  # part -> rows of the labels that it answers
        for row, label in enumerate(labels):
            # A label that is in several sets is answered by the first.
            parts = enumerate(selection.parts)
            rows[next(i for i, p in parts if label.label in p.labels.positions)].append(row)
        maps: dict[int, MapArray] = {}
        for i, found in rows.items():
            names = [labels[row].label for row in found]
            cells = self._map_part(selection.parts[i], names, memories[i])
            maps.update(zip(found, cells, strict=True))
        wants_overlay = selection.question.explain == "overlay"
        return tuple(
            Explanation(
                maps[row], draw_overlay(maps[row], photo, self._contract) if wants_overlay else None
            )
            for row in range(len(labels))
        )

    def _map_part(
        self, part: SelectedLabels, names: list[str], memory: NDArray[np.float32]
    ) -> MapArray:
        positions = [part.labels.positions[name] for name in names]
        if part.head is None:
            return self._graphs.draw(memory, np.asarray(positions, np.int64))
        assert part.labels.queries is not None
        return self._graphs.draw(memory, part.labels.queries[positions])
