"""The command: `python -m models.evaluate --checkpoint FILE --data FOLDER`.

In: a checkpoint and a labelled folder. Out: the average precision of each label and their
mean, in percent, computed by torch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from models.checkpoints import Checkpoint, read_checkpoint
from models.data import DataError, LabelledFolder, read_labelled_folder
from models.layouts import CheckpointError, Hints
from models.metrics import average_precisions
from models.train.views import Photos, evaluation_transform


def main(argv: list[str] | None = None) -> int:
    """Evaluates as told; returns the exit code (0 done, 2 a mistake in the request)."""
    parser = argparse.ArgumentParser(prog="python -m models.evaluate", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="labelled folder")
    parser.add_argument("--split", default="test")
    parser.add_argument("--backbone", help="timm name, where the file does not tell")
    arguments = parser.parse_args(argv)
    try:
        folder = read_labelled_folder(arguments.data)
        checkpoint = read_checkpoint(arguments.checkpoint, Hints(backbone=arguments.backbone))
        values = evaluate(checkpoint, folder, arguments.split)
    except (CheckpointError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, value in zip(folder.label_names, values.tolist(), strict=True):
        print(f"{name:20} {value:6.2f}")
    print(f"{'mAP':20} {float(values.nanmean()):6.2f}")
    return 0


@torch.inference_mode()
def evaluate(checkpoint: Checkpoint, folder: LabelledFolder, split: str) -> Tensor:
    """Computes the average precision of every label of a data set.

    Args:
        checkpoint: a whole network trained on this data set's labels.
        folder: the data set.
        split: which photos.

    Returns:
        Percent, 0..100, float [N]; NaN for a label without a positive.

    Raises:
        CheckpointError: a head alone, or other labels than the data set's.
        DataError: the split is empty.
    """
    if checkpoint.config is None:
        raise CheckpointError("the checkpoint holds a head alone, which takes no photos")
    names = checkpoint.label_names
    if names is not None and names != folder.label_names:
        raise CheckpointError("the checkpoint was trained on other labels than the data set's")
    if checkpoint.config.num_classes != len(folder.label_names):
        raise CheckpointError("the checkpoint has another number of labels than the data set")
    images = folder.split(split)
    photos = Photos(images, folder.targets(images), evaluation_transform(checkpoint.config.input))
    logits = [checkpoint.network(batch) for batch, _ in DataLoader(photos, 8)]
    return average_precisions(torch.cat(logits), photos.targets)


if __name__ == "__main__":
    sys.exit(main())
