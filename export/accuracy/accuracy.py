"""How good a variant is, measured through the service's pixels and ONNX Runtime.

In: graphs and labelled photos. Out: logits, scores and mean average precision. Next:
`calibrate.py` and the manifest's metrics.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from export.graphs.graph import Chain, FloatArray, Graphs, OpenChain
from export.sources.photos import LabelledPhotos, read_batches
from models.metrics import mean_average_precision
from service.bundle.card import Activation, InputContract
from service.pipeline.scoring import compute_scores

_BATCH_SIZE = 8


def predict_logits(graphs: Graphs, photos: LabelledPhotos, contract: InputContract) -> FloatArray:
    """Returns the logits of every photo, float32 [n, N]."""
    chain = Chain(graphs)
    batches = read_batches(photos.paths, contract, _BATCH_SIZE)
    return np.concatenate([chain.predict(pixels) for pixels in batches])


def predict_open_logits(
    graphs: Graphs, embeddings: FloatArray, photos: LabelledPhotos, contract: InputContract
) -> FloatArray:
    """Returns the logits of every photo for labels given by embeddings [L, E]: [n, L]."""
    chain = OpenChain(graphs, embeddings)
    batches = read_batches(photos.paths, contract, _BATCH_SIZE)
    return np.concatenate([chain.predict(pixels) for pixels in batches])


def to_scores(logits: FloatArray, activation: Activation) -> NDArray[np.float64]:
    """Returns the service's scores (0..1) of logits [n, N], float64 [n, N]."""
    return np.stack([compute_scores(row, activation) for row in logits])


def measure_map(logits: FloatArray, photos: LabelledPhotos, activation: Activation) -> float:
    """Returns mAP in percent of the service's scores, over labels with a positive and a negative.

    It is torchmetrics' definition: how well each label's scores rank the photos. So it fits scores
    of a softmax as well, where it is not the share of photos whose best label is right.
    """
    scores = torch.from_numpy(to_scores(logits, activation))
    return mean_average_precision(scores, torch.from_numpy(photos.targets))
