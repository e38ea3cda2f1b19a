"""Maps of the labels in an answer, and of no others, and their overlays; on the CPU.

The map of a label that has learnt from photos is the sum of its text's and of each token's part of
v . f. For 48 labels of coco80 with up to 5 examples, its peak is in a box in 0.36 of 604 cases, as
with the text alone; with v . f alone in 0.27.
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from service.bundle.card import InputContract
from service.bundle.reader import Bundle
from service.engine.session_set import MapGraphs
from service.pipeline.scoring import ScoredLabel
from service.pipeline.selection import Selection
from service.question import MAX_EXPLAINED

MapArray = NDArray[np.float32]

LONGEST_SIDE = 256
"""Pixels; a map has few cells, so more pixels would show no more. 320 take twice the time."""

# A palette from dark red over orange to pale yellow.
_LEVEL = np.linspace(0.0, 1.0, 256)
_RGB = np.clip([3 * _LEVEL + 0.3, 2 * _LEVEL - 0.5, 2 * _LEVEL - 1.2], 0, 1)
_COLOURS: list[int] = np.rint(_RGB.T * (255, 242.25, 255)).astype(np.uint8).ravel().tolist()
_OPACITY = np.rint(0.7 * np.sqrt(_LEVEL) * 255).astype(np.uint8).tobytes()


@dataclass(frozen=True, eq=False)
class Explanation:
    """Where a label is in a photo."""

    # [rows, columns] over the part of the upright photo that the model sees, with its padding. The
    # largest value is 1, or all are 0.
    map: MapArray
    overlay: bytes | None = None  # a PNG file to lay over the whole photo, if asked for


class Explainer:
    """Computes the maps of a bundle's labels; thread-safe."""

    def __init__(self, bundle: Bundle) -> None:
        self._contract = bundle.card.input
        self._graphs = MapGraphs(bundle)
        self.has_trained = self._graphs.trained is not None
        self.has_open = self._graphs.open is not None

    def covers(self, selection: Selection) -> bool:
        """Returns whether there are maps of all labels of the selection."""
        return all(part.labels.source.can_draw(self._graphs) for part in selection.parts)

    def explain_labels(
        self,
        labels: Sequence[ScoredLabel],
        selection: Selection,
        memories: Sequence[NDArray[np.float32]],
        photo: tuple[int, int],
        tokens: NDArray[np.float32] | None = None,
    ) -> tuple[Explanation, ...]:
        """Explains the first `MAX_EXPLAINED` labels; raises InferenceFailed if a graph fails.

        `memories` are float32 [S, D], one for each part of the selection; `photo` is width and
        height of the upright photo, pixels; `tokens` are [S, C], if the selection embeds.
        """
        names = [label.label for label in labels[:MAX_EXPLAINED]]
        maps: dict[str, MapArray] = {}
        for part, memory in zip(selection.parts, memories, strict=True):
            known, positions = part.labels, part.labels.positions
            # A label that is in several sets is answered by the first.
            answered = [name for name in names if name in positions and name not in maps]
            rows = np.array([positions[name] for name in answered], np.intp)
            drawn = known.source.draw(self._graphs, memory, rows) if answered else None
            if drawn is not None:
                maps |= zip(answered, drawn, strict=True)
            if tokens is None:
                continue
            grid = find_grid(len(tokens), self._contract.height, self._contract.width)
            patches = tokens[len(tokens) - math.prod(grid) :]
            blank = np.zeros_like(patches[0]), False
            for name in answered:
                learnt = known.learnt and known.learnt.locate(positions[name])
                vector, is_drawn = learnt or blank
                if name not in maps or is_drawn:
                    parts = (patches @ vector).clip(0)
                    maps[name] = _share(_share(parts).reshape(grid) + maps.get(name, 0))
        cells = [maps[name] for name in names]
        if selection.question.explain != "overlay":
            return tuple(map(Explanation, cells))
        return tuple(Explanation(c, draw_overlay(c, photo, self._contract)) for c in cells)


def _share(values: MapArray) -> MapArray:
    shares: MapArray = values / max(values.max(), np.finfo(np.float32).tiny)
    return shares


@cache
def find_grid(count: int, height: int, width: int) -> tuple[int, int]:
    """Returns rows and columns of the last of `count` tokens; those before are no patches."""
    strides = range(1, max(height, width) + 1)
    grids = [(cut(height / s), cut(width / s)) for s in strides for cut in (math.floor, math.ceil)]
    return max((grid for grid in grids if 0 < math.prod(grid) <= count), key=math.prod)


def draw_overlay(values: MapArray, photo: tuple[int, int], contract: InputContract) -> bytes:
    """Returns a PNG file with the photo's proportions; its longest side is `LONGEST_SIDE`.

    `values` are float32 [rows, columns], 0..1, over the part that the model sees; `photo` is width
    and height of the upright photo, pixels.
    """
    width, height = photo
    shrink = LONGEST_SIDE / max(width, height)
    size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
    left, top, right, bottom = find_seen_part(size, contract)
    cells = Image.fromarray(np.rint(values * 255).astype(np.uint8))
    seen = cells.resize((right - left, bottom - top), Image.Resampling.BICUBIC)
    picture = Image.new("P", size)
    picture.paste(seen, (left, top))  # parts outside the photo are padding
    picture.putpalette(_COLOURS)
    buffer = io.BytesIO()
    # Smooth pictures hardly get smaller with a higher level.
    picture.save(buffer, "PNG", transparency=_OPACITY, compress_level=1)
    return buffer.getvalue()


def find_seen_part(size: tuple[int, int], contract: InputContract) -> tuple[int, int, int, int]:
    """Returns left, top, right and bottom of what the model sees, in pixels of `size`.

    With padding, it is a square that goes beyond the photo.
    """
    width, height = size
    if contract.resize_mode == "squash":
        return 0, 0, width, height
    if contract.resize_mode == "pad":
        side = max(size)
        left, top = -((side - width) // 2), -((side - height) // 2)
        return left, top, left + side, top + side
    frame = contract.width / contract.crop_pct, contract.height / contract.crop_pct
    scale = max(frame[0] / width, frame[1] / height)
    seen_width = min(width, max(1, math.floor(contract.width / scale + 0.5)))
    seen_height = min(height, max(1, math.floor(contract.height / scale + 0.5)))
    left, top = (width - seen_width) // 2, (height - seen_height) // 2
    return left, top, left + seen_width, top + seen_height
