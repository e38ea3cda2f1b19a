"""Accuracy of a bundle's graphs on labelled photos, with the service's pixels and scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from export.graphs.graph import Chain, FloatArray, Graphs
from export.sources.photos import LabelledPhotos, read_batches
from models.metrics import mean_average_precision
from service.bundle.card import Activation, InputContract, Label
from service.labels.calibration import MIN_POSITIVES, find_best_f1
from service.pipeline.scoring import compute_scores

_BATCH_SIZE = 8


def predict_logits(
    graphs: Graphs,
    photos: LabelledPhotos,
    contract: InputContract,
    embeddings: FloatArray | None = None,
) -> FloatArray:
    """Returns logits float32 [n, N]; with label embeddings [L, E], the open head's [n, L]."""
    chain = Chain(graphs, embeddings)
    batches = read_batches(photos.paths, contract, _BATCH_SIZE)
    return np.concatenate([chain.predict(pixels) for pixels in batches])


def to_scores(logits: FloatArray, activation: Activation) -> NDArray[np.float64]:
    """Returns the service's scores (0..1) of logits [n, N], float64 [n, N]."""
    return np.stack([compute_scores(row, activation) for row in logits])


def measure_map(logits: FloatArray, photos: LabelledPhotos, activation: Activation) -> float:
    """Returns mAP in percent by torchmetrics' definition, over labels with positives and negatives.

    It measures how well scores rank the photos: for a softmax it is not the top-1 accuracy.
    """
    scores = torch.from_numpy(to_scores(logits, activation))
    return mean_average_precision(scores, torch.from_numpy(photos.targets))


def calibrate_labels(
    names: Sequence[str], scores: NDArray[np.float64], targets: NDArray[np.int64]
) -> tuple[Label, ...]:
    """Chooses each label's threshold of best F1 from scores and targets [n, N].

    Labels with fewer than `MIN_POSITIVES` positives get none.
    """
    labels = []
    for column, name in enumerate(names):
        positives, found = int(targets[:, column].sum()), {}
        if positives >= MIN_POSITIVES:
            best = find_best_f1(scores[:, column], targets[:, column])
            found = {
                "threshold": best.threshold,
                "precision": best.precision,
                "recall": best.recall,
            }
        labels.append(Label(name=name, positives=positives, **found))
    return tuple(labels)
