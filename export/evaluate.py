"""A bundle's figures, which `python -m models.evaluate --bundle FOLDER --data FOLDER` prints.

They are those of a checkpoint, computed by ONNX Runtime on the service's own pixels.
"""

from collections.abc import Iterator
from pathlib import Path

import torch

from export import ExportError
from export.accuracy import predict_logits, read_graphs
from export.graphs.graph import PIXELS_TO_LOGITS, PIXELS_TO_OPEN_LOGITS
from export.sources.labelled_photos import PhotoReader, select_photos
from models.data.records import LabelledFolder
from models.metrics import report_multi_label, report_single_label, report_zero_shot
from service.bundle.card import Precision
from service.bundle.reader import Bundle, load_bundle
from service.errors import BundleError
from service.labels.label_set import make_trained_set
from service.pipeline.scoring import compute_scores


def report_bundle(
    path: Path, folder: LabelledFolder, split: str, precision: Precision
) -> Iterator[str]:
    """Yields figures of the trained labels; without them, of the open head on word vectors.

    Raises ExportError if the bundle is invalid or has no such precision, or if labels or word
    vectors do not fit.
    """
    try:
        bundle = load_bundle(path)
    except BundleError as error:
        raise ExportError(" ".join(str(error).split())) from error
    if precision not in bundle.precisions():
        raise ExportError(f"bundle {bundle.card.name} has no {precision} variant")
    head = bundle.card.trained_head
    if head is None:
        return _report_open(bundle, folder, split, precision)
    names = [label.name for label in bundle.labels]
    photos = select_photos(folder, split, names, PhotoReader(bundle.card.input), partial=True)
    graphs = read_graphs(bundle, PIXELS_TO_LOGITS, precision)
    logits = predict_logits(graphs, photos)
    targets = torch.from_numpy(photos.targets)
    if head.activation == "softmax":
        return report_single_label(torch.from_numpy(logits), targets)
    calibration = make_trained_set(bundle.labels, head).calibration
    scores = compute_scores(logits, head.activation, calibration)
    return report_multi_label(torch.from_numpy(scores), targets, names)


def _report_open(
    bundle: Bundle, folder: LabelledFolder, split: str, precision: Precision
) -> Iterator[str]:
    head, vectors = bundle.card.open_head, folder.word_vectors
    if head is None or vectors is None:
        raise ExportError(
            f"bundle {bundle.card.name} has no trained labels, and data set {folder.name} "
            "no word vectors for others"
        )
    if vectors.embeddings.shape[1] != head.embedding_space.width:
        raise ExportError(
            f"bundle {bundle.card.name} takes embeddings of width {head.embedding_space.width}, "
            f"data set {folder.name} has {vectors.embeddings.shape[1]}"
        )
    photos = select_photos(folder, split, folder.label_names, PhotoReader(bundle.card.input))
    graphs = read_graphs(bundle, PIXELS_TO_OPEN_LOGITS, precision)
    logits = predict_logits(graphs, photos, vectors.embeddings)
    scores, targets = torch.from_numpy(logits), torch.from_numpy(photos.targets)
    return report_zero_shot(scores, targets, folder.label_names, vectors.seen, vectors.unseen)
