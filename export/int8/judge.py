"""Whether int8 is good enough to be the CPU's default, and what its search aims at.

In: the float32 graphs and the validation photos. Out: a `Judge`. Next: `search.py` asks it about
every candidate, `variants.py` about the one that was found.

Rules: mAP judges where the photos show enough labels to measure half a point of it. Where they
do not, a loss of 0 is luck, and the best of several candidates is the luckiest; then int8 has to
agree with fp32, which a few photos tell: noise of 20 dB below the logits' variation costs the
default bundle's 74 mAP about 0.4 points, of 14 dB 1.2, of 10 dB 3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from export.accuracy.accuracy import measure_map, predict_logits
from export.graphs.graph import FloatArray, Graphs
from export.int8.search import variation_to_noise
from export.sources.photos import LabelledPhotos
from export.sources.trained import Source

MAX_MAP_LOSS = 0.5
"""mAP points on validation that int8 may lose against fp32 and still be the CPU's default."""

AIMED_MAP_LOSS = 0.25
"""mAP points at which the search for int8 is content; the rest is for unseen photos."""

MIN_SHOWN = 1000
"""Labels that the photos have to show, all counted, for mAP to judge: with so many, the measured
loss of the default bundle's int8 has a standard deviation of 0.25 points, with 60 of 1.6."""

MIN_AGREEMENT = 20.0
"""Decibels that the logits have to vary above int8's deviation from fp32, where mAP cannot judge:
the deviation is a tenth of what tells photos apart."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Judge:
    """What int8 graphs are judged by.

    Attributes:
        measure_loss: loss of int8 graphs against fp32, smaller is better.
        aim: loss at which the search is content.
        limit: loss up to which int8 is the CPU's default.
    """

    measure_loss: Callable[[Graphs], float]
    aim: float
    limit: float


def choose_judge(graphs: Graphs, source: Source, photos: LabelledPhotos) -> Judge:
    """Returns what the photos can judge int8 by.

    Args:
        graphs: float32 graphs.
        source: what they were made of.
        photos: the validation split.
    """
    expected = predict_logits(graphs, photos, source.contract)
    shown = _count_shown(photos)
    if shown >= MIN_SHOWN:
        return Judge(_compare_map(expected, source, photos), AIMED_MAP_LOSS, MAX_MAP_LOSS)
    _log.info(
        "int8 is judged by its agreement with fp32: %s shows %d labels, mAP needs %d",
        *(photos.dataset, shown, MIN_SHOWN),
    )
    return Judge(_compare_logits(expected, source, photos), -MIN_AGREEMENT, -MIN_AGREEMENT)


def _count_shown(photos: LabelledPhotos) -> int:
    """Counts the positives of the labels that mAP is the mean over."""
    measured = np.ptp(photos.targets, axis=0) > 0
    return int(photos.targets[:, measured].sum())


def _compare_map(
    expected: FloatArray, source: Source, photos: LabelledPhotos
) -> Callable[[Graphs], float]:
    activation = source.config.activation
    reference = measure_map(expected, photos, activation)

    def measure_loss(graphs: Graphs) -> float:
        found = predict_logits(graphs, photos, source.contract)
        loss = reference - measure_map(found, photos, activation)
        _log.info("int8 loses %.2f of %.2f mAP on %s", loss, reference, photos.dataset)
        return loss

    return measure_loss


def _compare_logits(
    expected: FloatArray, source: Source, photos: LabelledPhotos
) -> Callable[[Graphs], float]:
    def measure_loss(graphs: Graphs) -> float:
        found = predict_logits(graphs, photos, source.contract)
        agreement = variation_to_noise(expected, found)
        _log.info(
            "int8: logits vary %.1f dB above their deviation from fp32 on %s, %.0f are needed",
            *(agreement, photos.dataset, MIN_AGREEMENT),
        )
        return -agreement

    return measure_loss
