"""A bundle's figures, which `python -m models.evaluate --bundle FOLDER --data FOLDER` prints.

They are those of a checkpoint, computed by ONNX Runtime on the service's own pixels.
"""

from collections.abc import Iterator
from pathlib import Path

import torch

from export import ExportError
from export.accuracy import predict_logits, read_graphs
from export.graphs.graph import PIXELS_TO_LOGITS
from export.sources.labelled_photos import PhotoReader, select_photos
from models.data.records import LabelledFolder
from models.metrics import report_multi_label, report_single_label
from service.bundle.card import Precision
from service.bundle.reader import load_bundle
from service.errors import BundleError
from service.labels.label_set import make_trained_set
from service.pipeline.scoring import compute_scores


def report_bundle(
    path: Path, folder: LabelledFolder, split: str, precision: Precision
) -> Iterator[str]:
    """Yields figures of the trained labels.

    Raises ExportError if the bundle is invalid or has no such precision, no trained labels or
    others than the folder.
    """
    try:
        bundle = load_bundle(path)
        if precision not in bundle.precisions():
            raise BundleError(f"bundle {bundle.card.name} has no {precision} variant")
        head = bundle.card.trained_head
        if head is None:
            raise BundleError(f"bundle {bundle.card.name} has no trained labels")
        graphs = read_graphs(bundle, PIXELS_TO_LOGITS, precision)
    except BundleError as error:
        raise ExportError(" ".join(str(error).split())) from error
    names = [label.name for label in bundle.labels]
    photos = select_photos(folder, split, names, PhotoReader(bundle.card.input))
    logits = predict_logits(graphs, photos)
    targets = torch.from_numpy(photos.targets)
    if head.activation == "softmax":
        return report_single_label(torch.from_numpy(logits), targets)
    calibration = make_trained_set(bundle.labels, head).calibration
    scores = compute_scores(logits, head.activation, calibration)
    return report_multi_label(torch.from_numpy(scores), targets, names)
