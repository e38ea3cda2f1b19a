"""`python -m models.evaluate --checkpoint FILE --data FOLDER`: the papers' figures, in percent."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from models.checkpoints.checkpoint import Checkpoint, read_checkpoint
from models.checkpoints.description import CheckpointError, add_hint_flags, read_hints
from models.commands import command, run_command
from models.data.labelled_folder import read_labelled_folder
from models.data.records import LabelledFolder
from models.metrics import report_multi_label, report_single_label
from models.train.views import Photos, evaluation_transform


@command
def main(argv: list[str] | None = None) -> None:
    """Runs the command; returns 0, or 2 for a mistake in the request."""
    parser = argparse.ArgumentParser(prog="python -m models.evaluate", description=__doc__)
    add = parser.add_argument
    add("--checkpoint", type=Path, required=True, help="weights: ours, or the authors' layouts")
    add("--data", type=Path, required=True, help="labelled folder")
    add("--split", default="test")
    add_hint_flags(parser)
    given = parser.parse_args(argv)
    folder = read_labelled_folder(given.data)
    checkpoint = read_checkpoint(given.checkpoint, read_hints(given))
    print("\n".join(report(checkpoint, folder, given.split)))


def report(checkpoint: Checkpoint, folder: LabelledFolder, split: str) -> Iterator[str]:
    """Yields the figures that fit the network: multi-label or single-label."""
    logits, targets = predict(checkpoint, folder, split)
    if checkpoint.take_network().config.activation == "softmax":
        return report_single_label(logits, targets)
    names = checkpoint.label_names or folder.label_names
    return report_multi_label(logits.sigmoid(), targets, names)


@torch.inference_mode()
def predict(checkpoint: Checkpoint, folder: LabelledFolder, split: str) -> tuple[Tensor, Tensor]:
    """Returns logits and targets of a split's photos, float [n, N], in the checkpoint's order.

    Raises DataError if the checkpoint has other labels, CheckpointError if it has none of its own.
    """
    network = checkpoint.take_network()
    count = network.config.num_classes
    if count is None:
        raise CheckpointError(
            "the checkpoint has no labels of its own: it scores any label by an embedding"
        )
    # Without names, the order is assumed to be equal.
    columns = folder.find_columns(checkpoint.label_names or folder.label_names)
    if count != len(columns):
        raise CheckpointError(f"the checkpoint has {count} labels, the data set {len(columns)}")
    photos = Photos.of_split(folder, split, evaluation_transform(network.config.input))
    logits = [network(batch) for batch, _ in DataLoader(photos, 8)]
    return torch.cat(logits), photos.targets[:, columns]


if __name__ == "__main__":
    run_command(main)
