"""`python -m models.evaluate_open --open-head FILE --checkpoint FILE --data FOLDER`.

Prints mAP, in percent, over trained and over other labels, with two baselines on the same photos:
chance, and ConSE of the untouched backbone.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader
from tqdm import tqdm

from models.checkpoints.open_head import OpenHeadCheckpoint, read_open_head
from models.commands import report_mistakes, run_command
from models.data.reader import read_labelled_folder
from models.data.records import DataError, LabelledFolder
from models.metrics import average_precisions
from models.text import read_text_encoder
from models.train.views import Photos, evaluation_transform
from models.train_open.teacher import Sources, read_sources, share_stages


class OpenScores(NamedTuple):
    """Average precision of each label of a data set, percent, float [L]; NaN if undefined."""

    head: Tensor
    conse: Tensor  # of the untouched backbone's classifier
    chance: Tensor  # of a random ranking: the share of photos with the label
    positives: Tensor  # number of photos with the label


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 for a mistake in the request."""
    parser = argparse.ArgumentParser(prog="python -m models.evaluate_open", description=__doc__)
    add = parser.add_argument
    add("--open-head", type=Path, required=True, help="checkpoint of the open head")
    add("--checkpoint", type=Path, required=True, help="checkpoint of its encoder")
    add("--data", type=Path, required=True, help="labelled folder, labels complete")
    add("--split", default="test")
    add("--text-encoder", type=Path, help="folder; unset takes the installed package's")
    add("--min-positives", type=int, default=5, help="fewest photos with a label that counts")
    add("--each", action="store_true", help="print every label too")
    arguments = parser.parse_args(argv)
    return report_mistakes(lambda: _evaluate(arguments))


def _evaluate(given: argparse.Namespace) -> None:
    folder = read_labelled_folder(given.data)
    opened = read_open_head(given.open_head)
    sources = read_sources(given.checkpoint, read_text_encoder(given.text_encoder))
    scores = evaluate_open(opened, sources, folder, given.split)
    if given.each:
        print(f"{'label':20} {'head':>7} {'ConSE':>7} {'chance':>7} positives")
        for name, *figures, positives in zip(folder.label_names, *scores, strict=True):
            print(f"{name:20} {_format(figures)} {int(positives):9}")
    print("\n".join(_list_groups(folder.label_names, scores, opened, given.min_positives)))


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
    photos = Photos.of_split(folder, split, evaluation_transform(sources.prepared))
    shared, own, others = share_stages(sources.encoder, sources.teacher.backbone)
    found, baseline = [], []
    for images, _ in tqdm(DataLoader(photos, 8), desc="photos"):
        features = shared(images)
        found.append(head(own(features), labels))
        baseline.append(score_conse(sources.teacher.classify(others(features)), names, labels))
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


def _list_groups(
    names: tuple[str, ...], scores: OpenScores, opened: OpenHeadCheckpoint, min_positives: int
) -> Iterator[str]:
    origin = opened.origin
    trained = torch.tensor([name in origin.label_names for name in names])
    mentioned = torch.tensor([name in origin.concept_names for name in names])
    groups = {
        "trained labels": trained,
        "other labels": ~trained,
        "of these, no concept": ~trained & ~mentioned,
    }
    yield f"{'mAP over':24} {'labels':>6} {'head':>7} {'ConSE':>7} {'chance':>7}"
    for title, group in groups.items():
        chosen = group & (scores.positives >= min_positives)
        means = [figure[chosen].nanmean() for figure in scores[:3]]
        yield f"{title:24} {int(chosen.sum()):6} {_format(means)}"


def _format(figures: list[Tensor]) -> str:
    return " ".join(f"{float(figure):7.2f}" for figure in figures)


if __name__ == "__main__":
    run_command(main)
