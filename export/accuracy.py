"""Accuracy of a bundle's graphs on labelled photos, with the service's pixels and scores."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from export.graphs.graph import (
    PIXELS_TO_LOGITS,
    PIXELS_TO_OPEN_LOGITS,
    EncoderAndHead,
    FloatArray,
    Graphs,
)
from export.sources.labelled_photos import LabelledPhotos
from service.bundle.card import RANKED, Activation, Precision, fold_name
from service.bundle.manifest import GraphName
from service.bundle.reader import Bundle
from service.bundle.writer import BundleDraft, write_bundle
from service.engine.heads import LabelVectors
from service.labels.files import read_bundle_sets
from service.labels.label_set import make_open_set, make_trained_set
from service.pipeline.scoring import compute_scores

_MAX_NAMES = 5  # of labels in a line of the log
logger = logging.getLogger(__name__)


def read_graphs(bundle: Bundle, names: tuple[GraphName, ...], precision: Precision) -> Graphs:
    """Reads graphs of a bundle; those without this precision in fp32."""
    files = {name: bundle.image_precision(name, precision) for name in names}
    return {n: onnx.load_from_string(bundle.read_graph(n, files[n])) for n in names}


@dataclass(frozen=True, eq=False)
class ScoredPhotos:
    """Photos and the logits [n, L] of their labels, by the graphs that a CPU runs by default."""

    photos: LabelledPhotos
    logits: FloatArray
    blank: FloatArray  # logits [m, L] of blank photos, by each variant


def score_photos(
    photos: LabelledPhotos, variants: Sequence[Graphs], embeddings: FloatArray | None = None
) -> ScoredPhotos:
    """Runs the first of `variants` on photos, and each on blank ones."""
    logits = predict_logits(variants[0], photos, embeddings)
    return ScoredPhotos(photos, logits, predict_blank(variants, embeddings))


def predict_logits(
    graphs: Graphs, photos: LabelledPhotos, embeddings: FloatArray | None = None
) -> FloatArray:
    """Returns logits float32 [n, N]; with label embeddings [L, E], the open head's [n, L]."""
    model = EncoderAndHead(graphs, embeddings)
    return np.concatenate([model.predict(pixels) for pixels in photos.read_batches()])


def predict_blank(variants: Iterable[Graphs], embeddings: FloatArray | None = None) -> FloatArray:
    """Returns logits float32 [m, N] or [m, L] of blank photos, black to white, by each variant."""
    logits = []
    for graphs in variants:
        model = EncoderAndHead(graphs, embeddings)
        greys = (np.full(model.photo_shape, grey, np.uint8) for grey in (*range(0, 256, 32), 255))
        logits += [model.predict(photo) for photo in greys]
    return np.concatenate(logits)


def finish_bundle(path: Path, draft: BundleDraft) -> Bundle:
    """Writes a bundle, and logs the labels that it finds on blank photos."""
    bundle = write_bundle(path, draft)
    check_blank(bundle)
    logger.info("wrote %s", path)
    return bundle


def check_blank(bundle: Bundle) -> None:
    """Logs the labels that are found on blank photos with any precision; there should be none."""
    head, opened, sets = bundle.card.trained_head, bundle.card.open_head, []
    if head is not None:
        sets.append(make_trained_set(bundle.labels, head))
    if opened is not None:
        trained = {fold_name(label.name) for label in bundle.labels}
        for definition in read_bundle_sets(bundle):
            vectors = LabelVectors(definition.embeddings)
            made = make_open_set(definition, vectors, opened, trained, version="", origin="bundle")
            sets.append(made)
    for labels in sets:
        if labels.ranked:  # any photo has a best label
            logger.info("scores of %s: %s", labels.name, RANKED.format(bundle.path))
            continue
        embeddings = labels.queries
        names = PIXELS_TO_LOGITS if embeddings is None else PIXELS_TO_OPEN_LOGITS
        variants = [read_graphs(bundle, names, precision) for precision in bundle.precisions()]
        logits = predict_blank(variants, embeddings)
        scores = compute_scores(logits, labels.activation, labels.calibration)
        positions = np.flatnonzero((scores >= labels.thresholds).any(axis=0))
        if labels.ratings is not None:  # every photo has one
            positions = np.setdiff1d(positions, labels.ratings)
        some = ", ".join(labels.names[position] for position in positions[:_MAX_NAMES]) or "none"
        level = logging.WARNING if len(positions) else logging.INFO
        found = labels.name, len(positions), some
        logger.log(level, "%s: labels found on blank photos: %d (%s)", *found)


def measure_map(logits: FloatArray, targets: NDArray[np.int64], activation: Activation) -> float:
    """Returns mAP in percent by torchmetrics' definition, over labels with positives and negatives.

    It measures how well scores rank the photos: for a softmax it is not the top-1 accuracy.
    """
    import torch  # a bundle is calibrated without it

    from models.metrics import mean_average_precision

    scores = torch.from_numpy(compute_scores(logits, activation))
    return mean_average_precision(scores, torch.from_numpy(targets))
