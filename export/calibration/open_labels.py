"""An open head's calibration, thresholds and ready label sets.

They are computed with the served graphs and text embeddings: 8 bits move scores a little.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from export.accuracy import ScoredPhotos, score_photos
from export.calibration.heads import (
    CalibrationOptions,
    calibrate_open,
    calibrate_trained_names,
    find_open_thresholds,
)
from export.graphs.graph import EmbedTexts, Graphs
from export.sources.label_sets import embed_label_set, embed_names
from export.sources.labelled_photos import LabelledPhotos
from service.bundle.card import Calibration, OpenHead
from service.calibration import move_threshold
from service.labels.definition import Definition
from service.labels.files import pack_label_set

# Largest difference of a stored embedding, in 16 bits, from that of the label's name.
_SAME_EMBEDDING = 2e-3
logger = logging.getLogger(__name__)


def calibrate_open_labels(  # noqa: PLR0913 - the parts of a bundle
    head: OpenHead,
    definitions: Iterable[Definition],
    unseen: LabelledPhotos | None,
    val: LabelledPhotos | None,
    variants: Sequence[Graphs],
    *,
    embed: EmbedTexts,
    options: CalibrationOptions,
    trained_names: Collection[str] | None = None,
) -> tuple[OpenHead, dict[str, bytes]]:
    """Calibrates a head on photos of other labels, then of trained ones; returns its sets too.

    Label sets are files by name, with all embeddings and thresholds on the head's scores. Those
    that a set has are kept. In a bundle that is calibrated again, of which `trained_names` are
    given as `fold_name` returns them, they are moved to the new scores, or measured.
    """
    before, trained = head, None

    def score(photos: LabelledPhotos) -> ScoredPhotos:
        template = before.embedding_space.template
        return score_photos(photos, variants, embed_names(photos.label_names, template, embed))

    if unseen is not None:
        head = calibrate_open(head, score(unseen), options)
    if val is not None:
        trained = score(val)
        head = calibrate_trained_names(head, trained)
    sets = {}
    for definition in definitions:
        embedded = embed_label_set(definition, head.embedding_space, embed)
        pairs = zip(embedded.names, embedded.thresholds, strict=True)
        given = {name: threshold for name, threshold in pairs if threshold is not None}
        measured = _find_thresholds_by_name(embedded, head, trained, options, embed)
        if trained_names is not None and definition.calibration is None:
            given = _move(given, before, head, trained_names)
        by_name: dict[str, float | None] = {**given, **measured}
        if trained_names is None:
            by_name |= given
        thresholds = tuple(by_name.get(name) for name in embedded.names)
        if trained is not None:
            count = sum(threshold is not None for threshold in thresholds)
            logger.info(
                "label set %s: %d of %d labels calibrated",
                *(definition.name, count, len(thresholds)),
            )
        sets[f"{definition.name}.npz"] = pack_label_set(replace(embedded, thresholds=thresholds))
    return head, sets


def _move(
    thresholds: dict[str, float], before: OpenHead, after: OpenHead, trained_names: Collection[str]
) -> dict[str, float]:
    """Returns the thresholds on the scores of `after` that the same photos reach."""
    raw, moved = Calibration(scale=1.0, shift=0.0), {}
    for name, threshold in thresholds.items():
        pairs = (head.find_calibration(name, trained_names) or raw for head in (before, after))
        moved[name] = move_threshold(threshold, *pairs)
    return moved


def _find_thresholds_by_name(
    embedded: Definition,
    head: OpenHead,
    trained: ScoredPhotos | None,
    options: CalibrationOptions,
    embed: EmbedTexts,
) -> dict[str, float | None]:
    """Returns thresholds of labels that have the name and embedding of a trained label.

    None for those without enough photos; without labels that learnt from photos, whose scores are
    others.
    """
    if trained is None:
        return {}
    calibration = embedded.calibration or head.trained_names or head.calibration
    thresholds = find_open_thresholds(trained, calibration, options)
    names = trained.photos.label_names
    vectors = embed_names(names, head.embedding_space.template, embed)
    trained_embeddings = dict(zip(names, vectors, strict=True))
    return {
        name: thresholds.get(name)
        for name, embedding in zip(embedded.names, embedded.embeddings, strict=True)
        if name in trained_embeddings.keys() - embedded.lessons.keys()
        and np.allclose(embedding, trained_embeddings[name], atol=_SAME_EMBEDDING)
    }
