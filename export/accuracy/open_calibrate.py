"""Thresholds of open labels: one for all, and own ones where photos with the truth allow.

In: graphs and labelled photos. Out: the global threshold, and label sets with thresholds.
Next: `build.py`. The global one is the point of best F1 over all labels at once that were not
trained with every photo's truth: what a label added by a user is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from export.accuracy.accuracy import predict_open_logits, to_scores
from export.accuracy.calibrate import calibrate_labels
from export.graphs.graph import Graphs
from export.graphs.text import TextEmbedder
from export.sources.open import OpenSource
from export.sources.photos import Splits
from export.sources.trained import Source
from service.labels.calibration import find_best_f1
from service.labels.definition import LabelSetRecord

_log = logging.getLogger(__name__)


def choose_threshold(
    opened: OpenSource, source: Source, graphs: Graphs, texts: TextEmbedder
) -> float | None:
    """Returns the score (0..1) at and above which an open label is predicted.

    Args:
        opened: the head, and photos to choose on; without any it is None.
        source: the encoder's.
        graphs: of the precision that will mostly be served.
        texts: embeds as the service does.
    """
    unseen = opened.unseen
    if unseen is None:
        return None
    embeddings = texts.embed_names(unseen.names, opened.template)
    logits = predict_open_logits(graphs, embeddings, unseen.photos, source.contract)
    targets = unseen.photos.targets
    best = find_best_f1(to_scores(logits, "sigmoid").ravel(), targets.ravel())
    _log.info(
        "open labels: threshold %.3f, precision %.2f and recall %.2f over %d labels of %s",
        *(best.threshold, best.precision, best.recall, len(unseen.names), unseen.photos.dataset),
    )
    return best.threshold


def calibrate_label_sets(
    opened: OpenSource,
    source: Source,
    splits: Splits | None,
    graphs: Graphs,
    texts: TextEmbedder,
) -> tuple[LabelSetRecord, ...]:
    """Gives labels of ready sets that are trained labels too their own thresholds.

    A threshold that a set's file gives stays.

    Args:
        opened: the head and its label sets.
        source: names of the trained labels.
        splits: photos with the truth on these; None leaves the sets as they are.
        graphs: of the precision that will mostly be served.
        texts: embeds as the service does.
    """
    if splits is None or not opened.label_sets:
        return opened.label_sets
    embeddings = texts.embed_names(source.label_names, opened.template)
    logits = predict_open_logits(graphs, embeddings, splits.val, source.contract)
    scores = to_scores(logits, "sigmoid")
    found = calibrate_labels(source.label_names, scores, splits.val.targets)
    thresholds = {label.name: label.threshold for label in found if label.threshold is not None}
    return tuple(_calibrate(record, thresholds) for record in opened.label_sets)


def _calibrate(record: LabelSetRecord, thresholds: Mapping[str, float]) -> LabelSetRecord:
    labels = [
        label
        if label.threshold is not None or label.prompt or label.embedding
        else label.model_copy(update={"threshold": thresholds.get(label.name)})
        for label in record.labels
    ]
    own = sum(label.threshold is not None for label in labels)
    _log.info("label set %s: %d of %d labels calibrated", record.name, own, len(labels))
    return record.model_copy(update={"labels": labels})
