"""`python -m models.evaluate_open --open-head FILE --checkpoint FILE --data FOLDER`.

Prints mAP, in percent, over trained and over other labels, with two baselines on the same photos:
chance, and ConSE of the untouched backbone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader
from tqdm import tqdm

from models.checkpoints.open_head import OpenHeadCheckpoint, read_open_head
from models.commands import report_mistakes, run_command
from models.data import DataError, LabelledFolder, check_photos, read_labelled_folder
from models.metrics import average_precisions
from models.text import read_text_encoder
from models.train.views import Photos, evaluation_transform
from models.train_open.teacher import Sources, read_sources, share_stages

_BATCH = 8


@dataclass(frozen=True, eq=False)
class OpenScores:
    """Average precision of each label of a data set, percent, float [L]; NaN if undefined."""

    head: Tensor
    conse: Tensor  # of the untouched backbone's classifier
    chance: Tensor  # of a random ranking: the share of photos with the label
    positives: Tensor  # number of photos with the label

    def mean_over(self, chosen: Tensor) -> Mapping[str, float]:
        """Returns each figure's mean over the labels that a bool [L] chooses; ignores NaN."""
        return {
            name: float(getattr(self, name)[chosen].nanmean())
            for name in ("head", "conse", "chance")
        }


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 for a mistake in the request."""
    arguments = _parser().parse_args(argv)
    return report_mistakes(lambda: _evaluate(arguments))


def _evaluate(arguments: argparse.Namespace) -> None:
    folder = read_labelled_folder(arguments.data)
    opened = read_open_head(arguments.open_head)
    sources = read_sources(arguments.checkpoint, read_text_encoder(arguments.text_encoder))
    scores = evaluate_open(opened, sources, folder, arguments.split)
    if arguments.each:
        _print_labels(folder.label_names, scores)
    _print_groups(folder.label_names, scores, opened, arguments.min_positives)


@torch.inference_mode()
def evaluate_open(
    opened: OpenHeadCheckpoint, sources: Sources, folder: LabelledFolder, split: str
) -> OpenScores:
    """Measures an open head and the baselines on the photos of a split."""
    if not folder.complete:
        raise DataError("an open head can only be measured on a data set with complete labels")
    opened.check_encoder(sources.encoder)
    opened.check_text_encoder(sources.text)
    head, template = opened.head, opened.head.config.embedding_template
    labels = sources.text.embed_names(folder.label_names, template)
    names = sources.text.embed_names(sources.teacher.names, template)
    check_photos(folder.split(split))
    photos = Photos.of_split(folder, split, evaluation_transform(sources.prepared))
    found, baseline = [], []
    for tokens, logits in _encode(photos, sources):
        found.append(head(tokens, labels))
        baseline.append(score_conse(logits, names, labels))
    return OpenScores(
        head=average_precisions(torch.cat(found), photos.targets),
        conse=average_precisions(torch.cat(baseline), photos.targets),
        chance=photos.targets.mean(dim=0) * 100,
        positives=photos.targets.sum(dim=0),
    )


def score_conse(logits: Tensor, names: Tensor, labels: Tensor) -> Tensor:
    """Scores labels by ConSE (arXiv 1312.5650), but with all names instead of the ten best.

    The classifier's probabilities average the embeddings of its names into one of the photo; a
    label's score is its cosine with that. Maps the classifier's logits [B, P], embeddings of its
    names [P, E] and of labels [L, E], of length 1, to cosines [B, L].
    """
    return functional.normalize(logits.softmax(dim=-1) @ names, dim=-1) @ labels.T


def _encode(photos: Photos, sources: Sources) -> Iterator[tuple[Tensor, Tensor]]:
    shared, own, others = share_stages(sources.encoder, sources.teacher.backbone)
    for images, _ in tqdm(DataLoader(photos, _BATCH), desc="photos"):
        features = shared(images)
        yield own(features), sources.teacher.classify(others(features))


def _print_labels(names: tuple[str, ...], scores: OpenScores) -> None:
    print(f"{'label':20} {'head':>7} {'ConSE':>7} {'chance':>7} positives")
    for i, name in enumerate(names):
        row = f"{scores.head[i]:7.2f} {scores.conse[i]:7.2f} {scores.chance[i]:7.2f}"
        print(f"{name:20} {row} {int(scores.positives[i]):9}")


def _print_groups(
    names: tuple[str, ...], scores: OpenScores, opened: OpenHeadCheckpoint, min_positives: int
) -> None:
    origin = opened.origin
    trained = torch.tensor([name in origin.label_names for name in names])
    mentioned = torch.tensor([name in origin.concept_names for name in names])
    enough = scores.positives >= min_positives
    groups = {
        "trained labels": trained,
        "other labels": ~trained,
        "of these, no concept": ~trained & ~mentioned,
    }
    print(f"{'mAP over':24} {'labels':>6} {'head':>7} {'ConSE':>7} {'chance':>7}")
    for title, group in groups.items():
        means = scores.mean_over(group & enough)
        figures = " ".join(f"{means[name]:7.2f}" for name in ("head", "conse", "chance"))
        print(f"{title:24} {int((group & enough).sum()):6} {figures}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models.evaluate_open", description=__doc__)
    add = parser.add_argument
    add("--open-head", type=Path, required=True, help="checkpoint of the open head")
    add("--checkpoint", type=Path, required=True, help="checkpoint of its encoder")
    add("--data", type=Path, required=True, help="labelled folder, labels complete")
    add("--split", default="test")
    add("--text-encoder", type=Path, help="folder; unset takes the installed package's")
    add("--min-positives", type=int, default=5, help="fewest photos with a label that counts")
    add("--each", action="store_true", help="print every label too")
    return parser


if __name__ == "__main__":
    run_command(main)
