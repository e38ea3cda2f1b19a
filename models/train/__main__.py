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
from torch import nn

from models.backbone import BackboneError
from models.checkpoints import read_checkpoint, write_checkpoint
from models.data import DataError, LabelledFolder, LabelledImage, read_labelled_folder
from models.layouts import CheckpointError
from models.network import Network
from models.pretrained import PretrainedError
from models.train.build import build_network
from models.train.features import FrozenPart, cache_features
from models.train.loop import LabelledData, Run, Trainee, seed_everything
from models.train.recipe import Recipe, RecipeError, read_recipe
from models.train.views import Photos, Transform, evaluation_transform, training_transform


@dataclass(frozen=True)
class Place:
    """Where a run reads and computes.

    Attributes:
        data: the labelled photos.
        out: run folder.
        cache: folder of cached features, shared between runs.
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
    fields = vars(arguments)
    overrides = {k: v for k in Recipe.model_fields if (v := fields[k]) is not None}
    try:
        recipe = read_recipe(arguments.recipe, overrides)
        arguments.out.mkdir(parents=True, exist_ok=True)
        place = Place(
            read_labelled_folder(arguments.data),
            arguments.out,
            arguments.cache or arguments.out / "cache",
            torch.device(arguments.device),
            arguments.workers,
        )
        score = train(place, recipe, arguments.init)
    except (RecipeError, DataError, PretrainedError, CheckpointError, BackboneError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.out / 'model.safetensors'}: {score:.2f} mAP on validation")
    return 0


def train(place: Place, recipe: Recipe, init: Path | None = None) -> float:
    """Trains a network and writes its checkpoint.

    Args:
        place: data and folders.
        recipe: every other choice.
        init: checkpoint of ours to start from, whose head has the recipe's shape.

    Returns:
        mAP on validation, percent.

    Raises:
        DataError: a split is empty.
        PretrainedError: no pretrained weights.
        BackboneError: timm knows no such backbone.
        CheckpointError: `init` cannot be read.
    """
    seed_everything(recipe.seed)
    network = build_network(recipe, len(place.data.label_names))
    if init is not None:
        network.load_state_dict(read_checkpoint(init).network.state_dict())
    trainee = _prepare(network, recipe, place, _start_key(init))
    run = Run(trainee, recipe, place.out)
    run.resume()
    (place.out / "recipe.json").write_text(recipe.model_dump_json(indent=2))
    score = run.fit()
    # The trainee shares its tail and head with the network, whose frozen part never changed.
    trainee.network.load_state_dict(run.ema.module.state_dict())
    notes = {
        "training_data": f"{place.data.name}, {len(place.data.split('train'))} photos",
        "val_mAP_percent": f"{score:.3f}",
        "recipe": recipe.model_dump_json(),
    }
    write_checkpoint(place.out / "model.safetensors", network.cpu(), place.data.label_names, notes)
    return score


def _prepare(network: Network, recipe: Recipe, place: Place, start: str) -> Trainee:
    frozen, tail = network.backbone.split(recipe.frozen_stages)
    frozen.eval().requires_grad_(False)
    trained = nn.Sequential(tail, network.head)

    def data(split: str, transform: Transform, views: int) -> LabelledData:
        images = place.data.split(split)
        photos = Photos(images, place.data.targets(images), transform)
        if recipe.frozen_stages == 0:
            return photos
        key = _cache_key(recipe, images, views, start)
        place.cache.mkdir(parents=True, exist_ok=True)
        path = place.cache / f"{place.data.name}-{split}-{key}.npy"
        frozen.to(place.device).to(memory_format=torch.channels_last)
        return cache_features(FrozenPart(frozen, place.device, place.workers), photos, views, path)

    prepared = network.config.input
    return Trainee(
        network=trained,
        backbone=tail,
        train=data("train", training_transform(recipe, prepared), recipe.views),
        val=data("val", evaluation_transform(prepared), 1),
        device=place.device,
        workers=place.workers if recipe.frozen_stages == 0 else 0,
    )


def _start_key(init: Path | None) -> str:
    return "" if init is None else hashlib.sha256(init.read_bytes()).hexdigest()


def _cache_key(recipe: Recipe, images: tuple[LabelledImage, ...], views: int, start: str) -> str:
    fields = {
        "backbone", "pretrained", "frozen_stages", "image_size", "train_size", "crop_scale",
        "auto_augment", "color_jitter", "erase", "seed",
    }  # fmt: skip
    names = ",".join(image.path.name for image in images)
    text = recipe.model_dump_json(include=fields) + f"{views}{names}{start}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models.train", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="labelled folder")
    parser.add_argument("--out", type=Path, required=True, help="run folder; resumes a run there")
    parser.add_argument("--recipe", type=Path, help="TOML file with any of the fields below")
    parser.add_argument("--init", type=Path, help="checkpoint of ours to start from")
    parser.add_argument("--cache", type=Path, help="folder of cached features")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=2, help="processes that decode photos")
    group = parser.add_argument_group("recipe")
    for name, field in Recipe.model_fields.items():
        options: dict[str, Any] = {"help": f"{field.description or ''} (default {field.default})"}
        if isinstance(field.default, bool):
            options["action"] = argparse.BooleanOptionalAction
        group.add_argument(f"--{name.replace('_', '-')}", **options, default=None)
    return parser


if __name__ == "__main__":
    sys.exit(main())
