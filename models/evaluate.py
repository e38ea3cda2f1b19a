"""`python -m models.evaluate --checkpoint FILE --data FOLDER`, or `--bundle FOLDER`.

Prints the papers' figures, in percent: of a checkpoint by torch, of a bundle by ONNX Runtime.
"""

import argparse
import pkgutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from models.checkpoints.checkpoint import Checkpoint, read_checkpoint
from models.checkpoints.description import CheckpointError, Hints, add_hint_flags, read_hints
from models.commands import command, run_command
from models.data.labelled_folder import read_labelled_folder
from models.data.records import LabelledFolder
from models.metrics import report_multi_label, report_single_label
from models.train.views import Photos, evaluation_transform


@command
def main(argv: list[str] | None = None) -> None:
    """Runs the command; returns 0, or 2 for a mistake in the request."""
    parser = argparse.ArgumentParser(prog="python -m models.evaluate", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--checkpoint", type=Path, help="weights: ours, or the authors' layouts")
    what.add_argument("--bundle", type=Path, help="folder that the export wrote")
    add = parser.add_argument
    add("--data", type=Path, required=True, help="labelled folder")
    add("--split", default="test")
    add("--precision", default="fp32", choices=["fp32", "fp16", "int8"], help="of a bundle")
    add_hint_flags(parser)
    given = parser.parse_args(argv)
    unused = [f.name for f in fields(Hints) if vars(given).get(f.name, f.default) != f.default]
    if given.bundle is not None and unused:
        flag = unused[0].replace("_", "-")
        parser.error(f"--{flag} is for checkpoints: a bundle describes itself")
    folder = read_labelled_folder(given.data)
    if given.bundle is None:
        lines = report(read_checkpoint(given.checkpoint, read_hints(given)), folder, given.split)
    else:
        # Resolved by name: `models` must not import `export`, see `tests/project/test_imports.py`.
        report_bundle = pkgutil.resolve_name("export.evaluate:report_bundle")
        lines = report_bundle(given.bundle, folder, given.split, given.precision)
    print("\n".join(lines))


def report(checkpoint: Checkpoint, folder: LabelledFolder, split: str) -> Iterator[str]:
    """Yields the figures that fit the network: multi-label or single-label."""
    logits, targets = predict(checkpoint, folder, split)
    if checkpoint.take_network().config.activation == "softmax":
        return report_single_label(logits, targets)
    return report_multi_label(logits.sigmoid(), targets, folder.label_names)


@torch.inference_mode()
def predict(checkpoint: Checkpoint, folder: LabelledFolder, split: str) -> tuple[Tensor, Tensor]:
    """Returns logits and targets of a split's photos, float [n, N], in the folder's order.

    Raises CheckpointError if the checkpoint has other labels, or none of its own.
    """
    network = checkpoint.take_network()
    config = network.config
    columns = _match_labels(config.num_classes, checkpoint.label_names, folder.label_names)
    photos = Photos.of_split(folder, split, evaluation_transform(config.input))
    logits = [network(batch) for batch, _ in DataLoader(photos, 8)]
    return torch.cat(logits)[:, columns], photos.targets


def _match_labels(
    count: int | None, names: tuple[str, ...] | None, wanted: tuple[str, ...]
) -> list[int]:
    """Returns the logits' column of each label of the folder."""
    if count is None:
        raise CheckpointError(
            "the checkpoint has no labels of its own: it scores any label by an embedding"
        )
    if names is None:
        if count != len(wanted):
            raise CheckpointError(f"the checkpoint has {count} labels, the data set {len(wanted)}")
        return list(range(len(wanted)))  # without names, the order is assumed to be equal
    others = sorted(set(names) ^ set(wanted))
    if others:
        raise CheckpointError(
            "the checkpoint was trained on other labels than the data set's: "
            f"{others[0]!r} is in one only"
        )
    return [names.index(name) for name in wanted]


if __name__ == "__main__":
    run_command(main)
