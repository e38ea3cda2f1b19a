"""The command: `python -m models.train_open --data FOLDER --checkpoint FILE --out RUN ...`.

In: a labelled folder with caption concepts, the checkpoint whose encoder stays as it is, a
sentence encoder and a recipe. Out: a run folder with `open.safetensors`, `recipe.json`,
`metrics.csv` and the state to resume from. Next: `python -m models.evaluate_open` and the export.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from models.checkpoints.layouts import CheckpointError
from models.checkpoints.open_head import (
    OpenHeadCheckpoint,
    Origin,
    fingerprint_encoder,
    read_open_head,
    write_open_head,
)
from models.checkpoints.pretrained import PretrainedError
from models.commands import run_command
from models.config import ZeroShotMLDecoderConfig
from models.data import DataError, LabelledFolder, check_photos, read_labelled_folder
from models.heads.zero_shot import ZeroShotMLDecoder
from models.metrics import MetricError
from models.text import TextEncoderError, read_text_encoder
from models.train.loop import seed_everything
from models.train.losses import LossError
from models.train.recipe import RecipeError, add_recipe_flags, given_fields, read_workers
from models.train.state import RunFolder
from models.train.views import Photos, Transform, evaluation_transform
from models.train_open.data import (
    Vocabulary,
    choose_captions,
    choose_names,
    make_targets,
    read_hold_out,
)
from models.train_open.loop import NameEmbeddings, OpenData, OpenRun, TrainedLabels
from models.train_open.recipe import OpenRecipe, read_open_recipe
from models.train_open.sources import Sources, read_sources
from models.train_open.tokens import CachedTokens, TokenCache, training_views

# What a head may differ in from the one that it starts from.
_OF_NO_WEIGHT = ("dropout", "embedding_encoder")

_MISTAKES = (
    CheckpointError, DataError, LossError, MetricError, PretrainedError, RecipeError,
    TextEncoderError,
    OSError,  # what may not be written, and full disks
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a run reads and computes.

    Attributes:
        data: the labelled photos.
        out: run folder.
        cache: folder of cached tokens, shared between runs.
        device: where to compute.
        workers: processes that decode photos.
    """

    data: LabelledFolder
    out: Path
    cache: Path
    device: torch.device
    workers: int


def main(argv: list[str] | None = None) -> int:
    """Trains as told; returns the exit code (0 done, 2 a mistake in the request)."""
    arguments = _parser().parse_args(argv)
    try:
        recipe = read_open_recipe(arguments.recipe, given_fields(arguments, OpenRecipe))
        arguments.out.mkdir(parents=True, exist_ok=True)
        place = Place(
            read_labelled_folder(arguments.data),
            arguments.out,
            arguments.cache or arguments.out / "cache",
            arguments.device,
            arguments.workers,
        )
        hold_out = [name for path in arguments.hold_out for name in read_hold_out(path)]
        text = read_text_encoder(arguments.text_encoder, arguments.text_encoder_name)
        init = None if arguments.init is None else read_open_head(arguments.init)
        found = train(place, recipe, read_sources(arguments.checkpoint, text), hold_out, init)
    except _MISTAKES as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    summary = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
    print(f"{arguments.out / 'open.safetensors'}: {summary}")
    return 0


def train(
    place: Place,
    recipe: OpenRecipe,
    sources: Sources,
    hold_out: Collection[str],
    init: OpenHeadCheckpoint | None = None,
) -> dict[str, float]:
    """Trains an open head and writes its checkpoint.

    Args:
        place: data and folders.
        recipe: every other choice.
        sources: encoder, teacher and text encoder.
        hold_out: names whose concepts are not trained on.
        init: open head to start from, see `start_from`.

    Returns:
        mAP on validation, percent, of the labels and of the names held out.

    Raises:
        DataError: a split is empty, a photo is missing or broken, or there are no concepts.
        RecipeError: fewer photos than one batch takes, or the run in the folder is another.
        CheckpointError: `init` is another kind of head than the recipe's.
        LossError: the loss is no longer a number.
        MetricError: nor are the logits.
    """
    check_photos(place.data.split("train") + place.data.split("val"))
    seed_everything(recipe.seed)
    names = choose_names(place.data, hold_out)
    folder = RunFolder(place.out, _describe(place, recipe, sources, names, init))
    state = folder.read_state()
    data = _prepare(place, recipe, sources, names, hold_out)
    seed_everything(recipe.seed)
    head = build_open_head(recipe, sources, data.names.teacher)
    if init is not None:
        init.check_text_encoder(sources.text)
        start_from(head, init.head)
    run = OpenRun(head, data, recipe, folder, place.device)
    if state is not None:
        run.resume(state)
    (place.out / "recipe.json").write_text(recipe.model_dump_json(indent=2))
    found = run.fit()
    head.load_state_dict(run.ema.module.state_dict())
    if head.votes is not None:
        head.votes.center(run.read_tokens())
    origin = Origin(
        encoder_fingerprint=fingerprint_encoder(sources.encoder),
        text_encoder_sha256=sources.text.sha256,
        label_names=names.labels,
        concept_names=names.concepts,
        notes={
            "training_data": f"{place.data.name}, {len(data.train_targets.labels)} photos",
            "recipe": recipe.model_dump_json(),
            **{name: f"{value:.3f}" for name, value in found.items()},
        },
    )
    write_open_head(place.out / "open.safetensors", head.cpu(), origin)
    return found


def build_open_head(
    recipe: OpenRecipe, sources: Sources, teacher_names: torch.Tensor
) -> ZeroShotMLDecoder:
    """Builds the recipe's head; its voting classifier starts as the teacher's.

    Args:
        recipe: widths and whether names vote.
        sources: what the head reads.
        teacher_names: embeddings of the teacher's names, float [P, E].
    """
    head = ZeroShotMLDecoder(
        ZeroShotMLDecoderConfig(
            encoder_width=sources.encoder.width,
            decoder_width=recipe.decoder_width,
            num_heads=recipe.num_heads,
            feedforward_width=recipe.feedforward_width,
            dropout=recipe.dropout,
            embedding_width=sources.text.width,
            embedding_encoder=sources.text.name,
            embedding_template=recipe.template,
            num_prototypes=len(teacher_names) if recipe.votes else 0,
        )
    )
    if head.votes is not None:
        head.votes.classifier.load_state_dict(sources.teacher.classifier.state_dict())
        head.votes.names.copy_(teacher_names)
        head.votes.sharpness.fill_(recipe.sharpness_of_votes)
    # Most labels are absent: starting there spares the first epoch.
    torch.nn.init.constant_(head.pool.bias, -3.0)
    return head


def start_from(head: ZeroShotMLDecoder, init: ZeroShotMLDecoder) -> None:
    """Gives a head all weights of another, its voting classifier and the names of that included.

    The sharpness of the votes stays: it is a choice of the recipe.

    Raises:
        CheckpointError: the two are built differently.
    """
    for name, wanted in head.config:
        found = getattr(init.config, name)
        if found != wanted and name not in _OF_NO_WEIGHT:
            raise CheckpointError(f"the head to start from has {name} {found!r}, not {wanted!r}")
    state = {name: value for name, value in init.state_dict().items() if name != "votes.sharpness"}
    head.load_state_dict(state, strict=False)


def _describe(
    place: Place,
    recipe: OpenRecipe,
    sources: Sources,
    names: Vocabulary,
    init: OpenHeadCheckpoint | None,
) -> dict[str, Any]:
    return recipe.model_dump() | {
        "label_names": list(names.labels),
        "concept_names": list(names.concepts),
        "photos": len(place.data.split("train")),
        "checkpoint": fingerprint_encoder(sources.encoder),
        "text_encoder": sources.text.sha256,
        "init": "" if init is None else fingerprint_encoder(init.head),
    }


def _prepare(
    place: Place,
    recipe: OpenRecipe,
    sources: Sources,
    names: Vocabulary,
    hold_out: Collection[str],
) -> OpenData:
    images = place.data.split("train")
    cache = TokenCache(sources.encoder, sources.teacher, place.cache, place.device, place.workers)

    def compute(split: str, views: list[Transform]) -> CachedTokens:
        some = place.data.split(split)
        photos = Photos(some, place.data.targets(some), views[0])
        return cache.compute(f"{place.data.file_name}-{split}-{recipe.seed}", photos, views)

    def embed(some: tuple[str, ...]) -> torch.Tensor:
        return sources.text.embed_names(some, recipe.template)

    return OpenData(
        names=NameEmbeddings(
            labels=embed(names.labels),
            concepts=embed(names.concepts),
            held_out=embed(names.held_out),
            teacher=embed(sources.teacher.names),
        ),
        train=compute("train", training_views(recipe, sources.prepared)),
        train_targets=make_targets(place.data, images, names),
        captions=_embed_captions(sources, choose_captions(place.data, images, hold_out)),
        val=compute("val", [evaluation_transform(sources.prepared)]),
        val_targets=make_targets(place.data, place.data.split("val"), names),
        trained=match_labels(sources, names),
    )


def _embed_captions(sources: Sources, captions: Sequence[str]) -> torch.Tensor:
    rows = [i for i, caption in enumerate(captions) if caption]
    embeddings = torch.zeros(len(captions), sources.text.width)
    embeddings[rows] = sources.text.embed([captions[i] for i in rows])
    return embeddings


def match_labels(sources: Sources, names: Vocabulary) -> TrainedLabels | None:
    """Finds which of the labels the encoder's own head knows; None where it knows none."""
    if sources.trained is None:
        return None
    known = sources.trained.label_names
    columns = [i for i, name in enumerate(names.labels) if name in known]
    if not columns:
        return None
    sought = [known.index(names.labels[i]) for i in columns]
    return TrainedLabels(sources.trained.head, torch.tensor(sought), torch.tensor(columns))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models.train_open", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="labelled folder with caption_concepts")
    add("--checkpoint", type=Path, required=True, help="its encoder is used and stays as it is")
    add("--out", type=Path, required=True, help="run folder; resumes a run there")
    add("--text-encoder", type=Path, help="folder; unset takes the installed package's")
    add("--text-encoder-name", help="name of the embedding space (default: the folder's)")
    add("--hold-out", type=Path, action="append", default=[], help="text file of names or labelled "
        "folder: no concept of such a name is trained on; may be given again")  # fmt: skip
    add("--init", type=Path, help="open head whose weights to start from")
    add("--recipe", type=Path, help="TOML file with any of the fields below")
    add("--cache", type=Path, help="folder of cached tokens")
    add("--device", type=_read_device, default="cuda" if torch.cuda.is_available() else "cpu")
    add("--workers", type=read_workers, default=2, help="processes that decode photos")
    add_recipe_flags(parser, OpenRecipe)
    return parser


def _read_device(text: str) -> torch.device:
    try:
        return torch.empty(0, device=text).device
    except (AssertionError, RuntimeError) as error:  # torch's, to a wrong name or no such device
        raise argparse.ArgumentTypeError(f"torch finds no device {text!r} here") from error


if __name__ == "__main__":
    run_command(main)
