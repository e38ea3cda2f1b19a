"""Accuracy of a bundle's graphs on labelled photos, with the service's pixels and scores."""

from __future__ import annotations

import numpy as np
import onnx
import torch

from export.graphs.graph import Chain, FloatArray, Graphs
from export.sources.photos import LabelledPhotos, read_batches
from models.metrics import mean_average_precision
from service.bundle.card import Activation, InputContract, Precision
from service.bundle.manifest import GraphName
from service.bundle.reader import Bundle
from service.pipeline.scoring import compute_scores

_BATCH_SIZE = 8


def read_graphs(bundle: Bundle, names: tuple[GraphName, ...], precision: Precision) -> Graphs:
    """Reads graphs of a bundle; those without this precision in fp32."""
    return {
        name: onnx.load_from_string(
            bundle.read_graph(name, bundle.image_precision(name, precision))
        )
        for name in names
    }


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


def measure_map(logits: FloatArray, photos: LabelledPhotos, activation: Activation) -> float:
    """Returns mAP in percent by torchmetrics' definition, over labels with positives and negatives.

    It measures how well scores rank the photos: for a softmax it is not the top-1 accuracy.
    """
    scores = torch.from_numpy(compute_scores(logits, activation))
    return mean_average_precision(scores, torch.from_numpy(photos.targets))
