"""How good a variant is, measured through the service's pixels and ONNX Runtime.

In: graphs and labelled photos. Out: logits, scores and mean average precision. Next:
`calibrate.py` and the manifest's metrics.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from export.graphs import Chain, FloatArray, Graphs, OpenChain
from export.photos import LabelledPhotos, read_batches
from models.metrics import mean_average_precision
from service.card import InputContract
from service.scoring import compute_scores

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


def to_scores(logits: FloatArray) -> NDArray[np.float64]:
    """Returns the service's scores (0..1) of multi-label logits, float64 [n, N]."""
    return compute_scores(logits, "sigmoid")


def measure_map(logits: FloatArray, photos: LabelledPhotos) -> float:
    """Returns mAP in percent, torchmetrics' definition, over labels with a positive."""
    scores = torch.from_numpy(to_scores(logits))
    return mean_average_precision(scores, torch.from_numpy(photos.targets))
