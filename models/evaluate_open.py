"""`python -m models.evaluate_open --open-head FILE --checkpoint FILE --data FOLDER`.

Prints mAP, in percent, over trained and over other labels, and that of chance on the same photos.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from models.checkpoints.checkpoint import read_checkpoint
from models.checkpoints.open_head import Origin, read_open_head
from models.commands import command, run_command
from models.data.labelled_folder import read_labelled_folder
from models.heads.zero_shot import ZeroShotMLDecoder
from models.metrics import average_precisions
from models.text import read_text_encoder
from models.train.views import Photos, evaluation_transform


class OpenScores(NamedTuple):
    """Average precision of each label of a data set, percent, float [L]; NaN if undefined."""

    head: Tensor
    chance: Tensor  # of a random ranking: the share of photos with the label
    positives: Tensor  # number of photos with the label


@command
def main(argv: list[str] | None = None) -> None:
    """Runs the command; returns 0, or 2 for a mistake in the request."""
    parser = argparse.ArgumentParser(prog="python -m models.evaluate_open", description=__doc__)
    add = parser.add_argument
    add("--open-head", type=Path, required=True, help="checkpoint of the open head")
    add("--checkpoint", type=Path, required=True, help="checkpoint of its encoder")
    add("--data", type=Path, required=True, help="labelled folder")
    add("--split", default="test")
    add("--text-encoder", type=Path, help="folder; unset takes the installed package's")
    add("--min-positives", type=int, default=5, help="fewest photos with a label that counts")
    given = parser.parse_args(argv)
    folder = read_labelled_folder(given.data)
    opened = read_open_head(given.open_head)
    network = read_checkpoint(given.checkpoint).take_network()
    text = read_text_encoder(given.text_encoder)
    opened.check_encoder(network.backbone)
    opened.check_text_encoder(text)
    photos = Photos.of_split(folder, given.split, evaluation_transform(network.config.input))
    names = folder.label_names
    labels = text.embed_names(names, opened.head.config.embedding_template)
    scores = evaluate_open(opened.head, network.backbone, photos, labels)
    print("\n".join(_list_groups(names, scores, opened.origin, given.min_positives)))


@torch.inference_mode()
def evaluate_open(
    head: ZeroShotMLDecoder, encoder: nn.Module, photos: Photos, labels: Tensor
) -> OpenScores:
    """Measures an open head on photos whose labels have these embeddings, float [L, E]."""
    batches = tqdm(DataLoader(photos, 8), desc="photos")
    logits = torch.cat([head(encoder(images), labels) for images, _ in batches])
    return OpenScores(
        head=average_precisions(logits, photos.targets),
        chance=photos.targets.mean(dim=0) * 100,
        positives=photos.targets.sum(dim=0),
    )


def _list_groups(
    names: tuple[str, ...], scores: OpenScores, origin: Origin, min_positives: int
) -> Iterator[str]:
    trained = torch.tensor([name in origin.label_names for name in names])
    mentioned = torch.tensor([name in origin.concept_names for name in names])
    groups = {
        "trained labels": trained,
        "other labels": ~trained,
        "of these, no concept": ~trained & ~mentioned,
    }
    yield f"{'mAP over':24} {'labels':>6} {'head':>7} {'chance':>7}"
    for title, group in groups.items():
        chosen = group & (scores.positives >= min_positives)
        head, chance = (float(figure[chosen].nanmean()) for figure in scores[:2])
        yield f"{title:24} {int(chosen.sum()):6} {head:7.2f} {chance:7.2f}"


if __name__ == "__main__":
    run_command(main)
