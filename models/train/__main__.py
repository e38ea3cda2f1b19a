"""The command: `python -m models.train --data FOLDER --out RUN [--recipe FILE] [--lr ...]`.

In: a labelled folder and a recipe. Out: a run folder with `model.safetensors`, `recipe.json`,
`metrics.csv` and the state to resume from. Next: `python -m export`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from models.backbones.backbone import Backbone, BackboneError
from models.checkpoints.checkpoint import write_checkpoint
from models.checkpoints.layouts import CheckpointError
from models.checkpoints.pretrained import PretrainedError
from models.commands import run_command
from models.data import (
    DataError,
    LabelledFolder,
    LabelledImage,
    check_negatives,
    check_photos,
    check_single_labels,
    read_labelled_folder,
)
from models.metrics import MetricError
from models.network import Network
from models.train.build import build_network, make_accelerator
from models.train.features import FrozenPart, cache_features
from models.train.loop import LabelledData, Run, Trainee, seed_everything
from models.train.losses import LossError
from models.train.open_labels import make_open_labels
from models.train.pictures import describe_files
from models.train.query_augmentation import QueryAugmentation
from models.train.recipe import (
    WHOLE_BACKBONE,
    Recipe,
    RecipeError,
    add_recipe_flags,
    given_fields,
    read_recipe,
    read_workers,
)
from models.train.start import fingerprint, start_from
from models.train.state import RunFolder
from models.train.views import Photos, Transform, evaluation_transform, training_transform

_MISTAKES = (
    BackboneError, CheckpointError, DataError, LossError, MetricError, PretrainedError, RecipeError,
    OSError,  # what may not be written, and full disks
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a run reads and computes.

    Attributes:
        data: the labelled photos.
        out: run folder.
        cache: folder of cached features, shared between runs.
        accelerator: where and in which precision to compute.
        workers: processes that decode photos.
    """

    data: LabelledFolder
    out: Path
    cache: Path
    accelerator: Accelerator
    workers: int


def main(argv: list[str] | None = None) -> int:
    """Trains as told; returns the exit code (0 done, 2 a mistake in the request)."""
    arguments = _parser().parse_args(argv)
    try:
        recipe = read_recipe(arguments.recipe, given_fields(arguments, Recipe))
        arguments.out.mkdir(parents=True, exist_ok=True)
        place = Place(
            read_labelled_folder(arguments.data),
            arguments.out,
            arguments.cache or arguments.out / "cache",
            make_accelerator(recipe, arguments.device),
            arguments.workers,
        )
        score = train(place, recipe, arguments.init)
    except _MISTAKES as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if place.accelerator.is_main_process:
        print(f"{arguments.out / 'model.safetensors'}: {score:.2f} mAP on validation")
    return 0


class TrainedPart(nn.Sequential):
    """The trained stages and the head: features -> logits, with embeddings for an open head."""

    def forward(self, features: Tensor, *embeddings: Tensor) -> Tensor:
        """Maps features [B, ...] (and label embeddings [L, E]) to logits."""
        stages, head = self
        logits: Tensor = head(stages(features), *embeddings)
        return logits


def train(place: Place, recipe: Recipe, init: Path | None = None) -> float:
    """Trains a network and writes its checkpoint.

    Args:
        place: data and folders.
        recipe: every other choice.
        init: checkpoint to start from, see `start_from`.

    Returns:
        mAP on validation, percent.

    Raises:
        DataError: a split is empty, a photo is missing or broken, no label is ever absent, or a
            photo of single-label data has not one label.
        RecipeError: the recipe does not fit the data, or is not that of the run in the folder.
        PretrainedError: no pretrained weights.
        BackboneError: timm knows no such backbone, or it cannot be cut.
        CheckpointError: `init` cannot be read.
        LossError: the loss is no longer a number.
        MetricError: nor are the logits.
    """
    check_photos(place.data.split("train") + place.data.split("val"))
    check_negatives(place.data)
    if recipe.single_label:
        check_single_labels(place.data)
    start = fingerprint(init)
    folder = RunFolder(place.out, _describe(recipe, place, start))
    state = folder.read_state()
    seed_everything(recipe.seed)
    network = build_network(recipe, place.data, recipe.pretrained and init is None)
    if init is not None:
        taken = start_from(network, init)
        place.accelerator.print(f"{init.name}: took {taken}")
    run = Run(_prepare(network, recipe, place, start), recipe, folder)
    if state is not None:
        run.resume(state)
    (place.out / "recipe.json").write_text(recipe.model_dump_json(indent=2))
    score = run.fit()
    if not place.accelerator.is_main_process:
        return score
    # The trainee shares its tail and head with the network, whose frozen part never changed.
    run.trainee.network.load_state_dict(run.ema.module.state_dict())
    notes = {
        "training_data": f"{place.data.name}, {len(place.data.split('train'))} photos",
        "val_mAP_percent": f"{score:.3f}",
        "recipe": recipe.model_dump_json(),
    }
    is_open = network.config.num_classes is None
    names = () if is_open else place.data.label_names
    write_checkpoint(place.out / "model.safetensors", network.cpu(), names, notes)
    return score


def _describe(recipe: Recipe, place: Place, start: str) -> dict[str, Any]:
    return recipe.model_dump() | {
        "label_names": list(place.data.label_names),
        "photos": len(place.data.split("train")),
        "processes": place.accelerator.num_processes,
        "init": start,
    }


def _prepare(network: Network, recipe: Recipe, place: Place, start: str) -> Trainee:
    _check_stages(network.backbone, recipe)
    frozen, tail = network.backbone.split(recipe.frozen_stages)
    frozen.eval().requires_grad_(False)
    trained = TrainedPart(tail, network.head)
    device = place.accelerator.device
    augmentation = QueryAugmentation(recipe.random_queries, recipe.query_noise)
    prepared = network.config.input

    def data(split: str, transform: Transform, views: int) -> LabelledData:
        images = place.data.split(split)
        photos = Photos(images, place.data.targets(images), transform)
        if recipe.frozen_stages == 0:
            return photos
        key = _cache_key(recipe, images, views, start + prepared.model_dump_json())
        place.cache.mkdir(parents=True, exist_ok=True)
        path = place.cache / f"{place.data.file_name}-{split}-{key}.npy"
        frozen.to(device).to(memory_format=torch.channels_last)
        with place.accelerator.main_process_first():  # the others find the file
            return cache_features(FrozenPart(frozen, device, place.workers), photos, views, path)

    return Trainee(
        open_labels=(
            make_open_labels(place.data, augmentation, device)
            if recipe.head == "zero_shot_ml_decoder"
            else None
        ),
        network=trained,
        backbone=tail,
        train=data("train", training_transform(recipe, prepared), recipe.views),
        val=data("val", evaluation_transform(prepared), 1),
        accelerator=place.accelerator,
        workers=place.workers if recipe.frozen_stages == 0 else 0,
        from_weights=recipe.pretrained or bool(start),
    )


def _check_stages(backbone: Backbone, recipe: Recipe) -> None:
    stages = recipe.frozen_stages
    if backbone.num_stages == 1 and 0 < stages < WHOLE_BACKBONE:
        raise BackboneError(
            f"{backbone.name} cannot be cut between stages, which EfficientNets and the like can: "
            f"give --frozen-stages {WHOLE_BACKBONE} (all of it) or 0 (none)"
        )
    if recipe.cutmix and stages >= backbone.num_stages:
        raise RecipeError(
            "recipe: cutmix: nothing is left to cut from where the whole backbone is frozen: give "
            "fewer --frozen-stages"
        )


def _cache_key(recipe: Recipe, images: tuple[LabelledImage, ...], views: int, network: str) -> str:
    fields = {
        "backbone", "pretrained", "frozen_stages", "image_size", "train_size", "crop_scale",
        "auto_augment", "color_jitter", "erase", "train_resize", "cutout", "seed",
    }  # fmt: skip
    text = recipe.model_dump_json(include=fields) + f"{views}{describe_files(images)}{network}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models.train", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="labelled folder")
    parser.add_argument("--out", type=Path, required=True, help="run folder; resumes a run there")
    parser.add_argument("--recipe", type=Path, help="TOML file with any of the fields below")
    parser.add_argument("--init", type=Path, help="checkpoint whose weights to start from")
    parser.add_argument("--cache", type=Path, help="folder of cached features")
    parser.add_argument("--device", choices=["auto", "cpu"], default="auto",
                        help="auto is what `accelerate` finds or was told")  # fmt: skip
    parser.add_argument("--workers", type=read_workers, default=2,
                        help="processes that decode photos")  # fmt: skip
    add_recipe_flags(parser, Recipe)
    return parser


if __name__ == "__main__":
    run_command(main)
