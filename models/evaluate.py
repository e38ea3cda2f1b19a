"""`python -m models.evaluate --checkpoint FILE --data FOLDER`, or `--bundle FOLDER`.

Prints the papers' figures, in percent: of a checkpoint by torch, of a bundle by ONNX Runtime in
`export/evaluate.py`.
"""

from __future__ import annotations

import argparse
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from models.checkpoints.checkpoint import Checkpoint, read_checkpoint
from models.checkpoints.description import CheckpointError, add_hint_flags, read_hints
from models.commands import report_mistakes, run_command
from models.data import (
    DataError,
    LabelledFolder,
    check_photos,
    keep_relevant,
    read_labelled_folder,
)
from models.report import report_multi_label, report_single_label, report_zero_shot
from models.train.views import Photos, evaluation_transform

_OF_WEIGHTS = ("backbone", "image_size", "num_heads", "pre_norm", "plain_pixels", "single_label")


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 for a mistake in the request."""
    parser = _make_parser()
    given = parser.parse_args(argv)
    if given.bundle is not None:
        unused = [name for name in _OF_WEIGHTS if vars(given)[name] != parser.get_default(name)]
        if unused:
            parser.error(
                f"--{unused[0].replace('_', '-')} is for checkpoints: a bundle describes itself"
            )
        return _evaluate_bundle(given)
    return report_mistakes(lambda: _evaluate_checkpoint(given))


def _evaluate_checkpoint(given: argparse.Namespace) -> None:
    folder = read_labelled_folder(given.data)
    if given.relevant_photos:
        folder = keep_relevant(folder)
    checkpoint = read_checkpoint(given.checkpoint, read_hints(given))
    print("\n".join(report(checkpoint, folder, given.split)))


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models.evaluate", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--checkpoint", type=Path, help="weights: ours, or the authors' layouts")
    what.add_argument("--bundle", type=Path, help="folder that the export wrote")
    parser.add_argument("--data", type=Path, required=True, help="labelled folder")
    parser.add_argument("--split", default="test")
    parser.add_argument(
        "--relevant-photos",
        action="store_true",
        help="only photos with a label, zero-shot with an unseen one, as ML-Decoder's authors "
        "(default: all)",
    )
    parser.add_argument(
        "--precision", default="fp32", choices=["fp32", "fp16", "int8"], help="of a bundle"
    )
    add_hint_flags(parser)
    return parser


def _evaluate_bundle(given: argparse.Namespace) -> int:
    # Resolved by name: `models` must not import `export`, see `tests/project/test_imports.py`.
    evaluate_bundle = pkgutil.resolve_name("export.evaluate:main")
    flags = ("bundle", "data", "split", "precision")
    relevant = ["--relevant-photos"] if given.relevant_photos else []
    values = [f"--{name}={getattr(given, name)}" for name in flags]
    return int(evaluate_bundle([*values, *relevant]))


def report(checkpoint: Checkpoint, folder: LabelledFolder, split: str) -> Iterator[str]:
    """Yields the figures that fit the network: multi-label, single-label or zero-shot."""
    logits, targets = predict(checkpoint, folder, split)
    assert checkpoint.config is not None  # `predict` refuses others
    if checkpoint.config.activation == "softmax":
        return report_single_label(logits, targets)
    vectors = folder.word_vectors
    if checkpoint.config.num_classes is None and vectors is not None:
        names = folder.label_names
        return report_zero_shot(logits, targets, names, vectors.seen, vectors.unseen)
    return report_multi_label(logits.sigmoid(), targets, folder.label_names)


@torch.inference_mode()
def predict(checkpoint: Checkpoint, folder: LabelledFolder, split: str) -> tuple[Tensor, Tensor]:
    """Returns logits and targets of a split's photos, float [n, N], in the folder's order."""
    if checkpoint.config is None:
        raise CheckpointError("the checkpoint has a head without a backbone")
    columns = _match_labels(checkpoint, folder)
    check_photos(folder.split(split))
    photos = Photos.of_split(folder, split, evaluation_transform(checkpoint.config.input))
    embeddings = _embeddings(checkpoint, folder)
    logits = [checkpoint.network(batch, *embeddings) for batch, _ in DataLoader(photos, 8)]
    return torch.cat(logits)[:, columns], photos.targets


def _match_labels(checkpoint: Checkpoint, folder: LabelledFolder) -> list[int]:
    """Returns the logits' column of each label of the folder."""
    assert checkpoint.config is not None
    count, names = checkpoint.config.num_classes, checkpoint.label_names
    wanted = folder.label_names
    if count is None or names is None:
        if count not in (None, len(wanted)):
            raise CheckpointError(f"the checkpoint has {count} labels, the data set {len(wanted)}")
        return list(range(len(wanted)))  # without names, the order is assumed to be equal
    others = sorted(set(names) ^ set(wanted))
    if others:
        raise CheckpointError(
            "the checkpoint was trained on other labels than the data set's: "
            f"{others[0]!r} is in one only"
        )
    return [names.index(name) for name in wanted]


def _embeddings(checkpoint: Checkpoint, folder: LabelledFolder) -> tuple[Tensor, ...]:
    assert checkpoint.config is not None
    if checkpoint.config.num_classes is not None:
        return ()
    if folder.word_vectors is None:
        raise DataError(f"data set {folder.name} has no word vectors, which a zero-shot head needs")
    return (torch.from_numpy(folder.word_vectors.embeddings),)


if __name__ == "__main__":
    run_command(main)
