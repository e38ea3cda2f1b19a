"""Chooses the labels that the open head scores: those whose estimate may be in the answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.bundle.reader import Bundle
from service.engine.heads import KeyArray, LogitsArray, ScreenedQueries, Wanted
from service.engine.sessions import SessionConfig, TensorSpec, check_tensors, open_session
from service.engine.tensors import Tensor, cut_rows, run_bound, run_graph

# Scores of higher logits round to the same float64, and of equal scores the first label is
# answered: none of them may be left out for another.
_SATURATED = 33.0


@dataclass(frozen=True)
class ScreenSessions:
    """The graphs of a screen; thread-safe."""

    photo: ort.InferenceSession
    labels: ort.InferenceSession
    margin: float  # logits

    def keep(
        self,
        tokens: NDArray[np.float32] | ort.OrtValue,
        asked: Sequence[tuple[int, ScreenedQueries]],
        split: Callable[[KeyArray], Iterable[Tensor]],
    ) -> list[NDArray[np.intp]]:
        """Returns the labels to score, as `find_kept` does, for pairs of a row and its head.

        `split` cuts keys [L, Z] into chunks.
        """
        rows = sorted({row for row, _ in asked})
        names = ["places", "whole"]
        if isinstance(tokens, ort.OrtValue):
            span = cut_rows(tokens, rows[0], rows[-1])
            photos = run_bound(self.photo, names, tokens.device_name(), tokens=span)
            at = {row: row - span.start for row in rows}
            size = span.stop - span.start
        else:
            some = tokens if len(rows) == len(tokens) else tokens[rows]
            photos = run_graph(self.photo, names, tokens=some)
            at = {row: place for place, row in enumerate(rows)}
            size = len(rows)
        rows_of: dict[int, set[int]] = defaultdict(set)
        for row, head in asked:
            rows_of[id(head.keys)].add(at[row])
        estimates: dict[tuple[int, int], LogitsArray] = {}
        for keys in {id(head.keys): head.keys for _, head in asked}.values():
            own = sorted(rows_of[id(keys)])
            # On a GPU, running the unused rows costs less than copying the used ones.
            whole = len(own) == size or isinstance(tokens, ort.OrtValue)
            places = range(size) if whole else own
            given = photos if whole else [each[own] for each in photos]
            found = self._estimate(given, split(keys), (len(places), len(keys)))
            estimates |= {(id(keys), place): row for place, row in zip(places, found, strict=True)}
        return [
            find_kept(estimates[id(head.keys), at[row]], head.wanted, self.margin)
            for row, head in asked
        ]

    def _estimate(
        self, photos: Sequence[Tensor], chunks: Iterable[Tensor], shape: tuple[int, int]
    ) -> LogitsArray:
        places, whole = photos
        found = np.concatenate(
            [
                run_graph(self.labels, ["estimates"], places=places, whole=whole, keys=chunk)[0]
                for chunk in chunks
            ],
            axis=1,
        )
        if found.shape != shape:
            raise ValueError(f"screen gave estimates of shape {list(found.shape)}")
        return found


def open_screen(bundle: Bundle, config: SessionConfig, tokens: TensorSpec) -> ScreenSessions | None:
    """Opens and checks a bundle's screen, if it has one; raises as `open_session` does."""
    head = bundle.card.open_head
    if head is None or head.screen is None:
        return None
    photo = open_session(bundle, "screen_photo", config)
    places: TensorSpec = ("float", (None, None))
    flat: TensorSpec = ("float", (None,))
    check_tensors("screen_photo", photo.get_inputs(), tokens=tokens)
    check_tensors("screen_photo", photo.get_outputs(), places=places, whole=flat)
    labels = open_session(bundle, "screen", config)
    check_tensors("screen", labels.get_inputs(), places=places, whole=flat, keys=flat)
    check_tensors("screen", labels.get_outputs(), estimates=flat)
    return ScreenSessions(photo, labels, head.screen.margin)


def find_kept(estimates: LogitsArray, wanted: Wanted, margin: float) -> NDArray[np.intp]:
    """Returns the ascending positions of labels that may be in the answer.

    `estimates` [L] are of the open head's logits. With a threshold, the best `limit` are searched
    among the labels that certainly reach theirs: others do not count against it. NaN is kept.
    """
    ranks: LogitsArray = estimates if wanted.scale is None else estimates * wanted.scale
    if wanted.shift is not None:
        ranks = ranks + wanted.shift
    reach = margin if wanted.scale is None else margin * wanted.scale
    lost = np.zeros(len(ranks), np.bool_)
    if wanted.chosen is not None:
        lost[:] = True
        lost[wanted.chosen] = False
    rivals = ~lost
    if wanted.floors is not None:
        floors = np.minimum(wanted.floors, _SATURATED)
        lost |= ranks + reach < floors
        rivals &= ranks - reach >= floors
    if wanted.limit is not None:
        values = ranks[rivals]
        if len(values) > wanted.limit:
            place = len(values) - wanted.limit
            lost |= ranks + reach < min(np.partition(values, place)[place], _SATURATED)
    (kept,) = (~lost).nonzero()
    return kept
