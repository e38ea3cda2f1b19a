"""Shared by `python -m models.train` and `python -m models.train_open`: flags and folders."""

import argparse
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from models.data.labelled_folder import read_labelled_folder
from models.data.records import LabelledFolder
from models.train.recipe import BaseRecipe

RecipeT = TypeVar("RecipeT", bound=BaseRecipe)


@dataclass(frozen=True)
class RunContext:
    """Data, folders and device of a run."""

    data: LabelledFolder
    out: Path
    cache: Path  # arrays that runs may share
    device: torch.device
    workers: int  # processes that decode photos

    def name_cache(self, prefix: str, key: str, ending: str) -> Path:
        """Returns the file of a cached array; the key is all that its values depend on."""
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        return self.cache / f"{self.data.name.replace('/', '-')}-{prefix}-{digest}.{ending}"


def make_parser(prog: str, about: str | None, kind: type[BaseRecipe]) -> argparse.ArgumentParser:
    """Returns a parser of the flags of every run and of one flag per field of the recipe."""
    parser = argparse.ArgumentParser(prog=prog, description=about)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="labelled folder")
    add("--out", type=Path, required=True, help="run folder; continues the run in it")
    add("--recipe", type=Path, help="TOML file with any of the fields below")
    add("--init", type=Path, help="checkpoint whose weights to start from")
    add("--cache", type=Path, help="folder of cached outputs of the frozen part")
    add("--workers", type=_read_workers, default=2, help="processes that decode photos")
    add("--device", type=_read_device, default="cuda" if torch.cuda.is_available() else "cpu")
    group = parser.add_argument_group("recipe")
    for name, field in kind.model_fields.items():
        options: dict[str, Any] = {"help": f"{field.description or ''} (default {field.default})"}
        if isinstance(field.default, bool):
            options["action"] = argparse.BooleanOptionalAction
        group.add_argument(f"--{name.replace('_', '-')}", **options, default=None)
    return parser


def read_run(arguments: argparse.Namespace, kind: type[RecipeT]) -> tuple[RecipeT, RunContext]:
    """Reads recipe and data, and makes the run's folders; raises RequestError or OSError."""
    flags = {name: getattr(arguments, name) for name in kind.model_fields}
    given = {name: value for name, value in flags.items() if value is not None}
    recipe, data = kind.read(arguments.recipe, given), read_labelled_folder(arguments.data)
    cache = arguments.cache or arguments.out / "cache"
    for folder in (arguments.out, cache):
        folder.mkdir(parents=True, exist_ok=True)
    return recipe, RunContext(data, arguments.out, cache, arguments.device, arguments.workers)


def _read_device(text: str) -> torch.device:
    try:
        return torch.empty(0, device=text).device
    except (AssertionError, RuntimeError) as error:  # torch's, for an unknown or absent device
        raise argparse.ArgumentTypeError(
            f"torch finds no device {text!r} here; leave it out for the GPU, if there is one"
        ) from error


def _read_workers(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)
