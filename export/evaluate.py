"""The command: `python -m export.evaluate --bundle FOLDER --data FOLDER`.

In: a bundle and a labelled folder. Out: the figures that `models.evaluate` gives of a
checkpoint, computed by ONNX Runtime on the service's own pixels.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import torch

from export.accuracy import predict_logits
from export.errors import ExportError
from export.graphs import PIXELS_TO_LOGITS
from export.photos import select_photos
from models.data import DataError, read_labelled_folder
from models.report import report_multi_label, report_single_label
from service.bundle import Bundle, BundleError, load_bundle
from service.card import Precision


def main(argv: list[str] | None = None) -> int:
    """Evaluates as told; returns the exit code (0 done, 2 a mistake in the request)."""
    parser = argparse.ArgumentParser(prog="python -m export.evaluate", description=__doc__)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="labelled folder")
    parser.add_argument("--split", default="test")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "fp16", "int8"])
    given = parser.parse_args(argv)
    try:
        lines = list(report(load_bundle(given.bundle), given.data, given.split, given.precision))
    except (BundleError, DataError, ExportError) as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 2
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def report(bundle: Bundle, data: Path, split: str, precision: Precision) -> Iterator[str]:
    """Yields the figures of a bundle's trained labels.

    Args:
        bundle: one with a trained head.
        data: labelled folder with the same labels.
        split: which photos.
        precision: which variant.

    Raises:
        ExportError: there is no trained head, or the labels are not the folder's.
        models.data.DataError: the folder cannot be read.
        service.bundle.BundleError: there is no such variant.
    """
    head = bundle.card.trained_head
    if head is None:
        raise ExportError(f"bundle {bundle.card.name} has no trained labels to measure")
    names = [label.name for label in bundle.labels]
    photos = select_photos(read_labelled_folder(data), split, names)
    graphs = {
        name: onnx.load_from_string(bundle.read_graph(name, precision)) for name in PIXELS_TO_LOGITS
    }
    logits = torch.from_numpy(predict_logits(graphs, photos, bundle.card.input))
    targets = torch.from_numpy(photos.targets)
    if head.activation == "softmax":
        return report_single_label(logits, targets)
    return report_multi_label(logits.sigmoid(), targets, names)


if __name__ == "__main__":
    sys.exit(main())
