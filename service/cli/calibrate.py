"""`ml-decoder labels calibrate`: thresholds of a registered label set from labelled photos.

A folder has `labels.json` ({name, label_names, images: {file: {split, labels}}}) and `images/`.
Photos go through the service's own pipeline, so that the scores are those of the service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ValidationError

from service.bundle.card import format_first_error
from service.cli.photos import LabelledPhoto, label_photos, run_pipeline
from service.errors import LabelSetReadOnly, StartError
from service.labels.calibration import MIN_POSITIVES, OperatingPoint, find_best_f1
from service.labels.question import Question
from service.labels.text import LabelText
from service.pipeline.pipeline import Pipeline
from service.settings import Settings

LABELS_FILE = "labels.json"


class LabelledImage(BaseModel):
    """One photo; all labels that are not listed are absent."""

    split: str | None = None
    labels: list[LabelText]


class LabelledFolder(BaseModel):
    """Contents of `labels.json`; names are normalised like those of label sets (macOS uses NFD)."""

    label_names: list[LabelText]
    images: dict[str, LabelledImage]


@dataclass(frozen=True)
class Calibration:
    """What a run found."""

    points: Mapping[str, OperatingPoint]  # by label
    left_out: tuple[LabelledPhoto, ...]  # photos that have no prediction


async def calibrate_set(
    settings: Settings, name: str, folder: Path, split: str | None = None
) -> Calibration:
    """Sets the thresholds of a set's labels that have at least `MIN_POSITIVES` photos.

    Only photos of the split count, if one is given; those that cannot be used are left out. Raises
    LabelSetChanged if the set was changed meanwhile, and StartError for an unusable folder.
    """
    labelled = read_labelled_folder(folder)
    photos = {
        folder / "images" / file: set(image.labels)
        for file, image in labelled.images.items()
        if split is None or image.split == split
    }
    if not photos:
        wanted = "" if split is None else f" of the split {split}"
        raise StartError(f"{folder} has no photo{wanted}")
    async with run_pipeline(settings) as pipeline:
        labels = pipeline.catalogue.find(name)
        if labels.read_only:  # before the photos, which may take minutes
            raise LabelSetReadOnly(name)
        named = set(labelled.label_names)
        common = tuple(label for label in labels.names if label in named)
        if not common:
            raise StartError(f"{folder} has no label of the set {name}")
        question = Question(label_set=[name], top_k=len(labels.names))
        scores, left_out = await _score(pipeline, list(photos), question)
        if not scores:
            raise StartError(f"none of the photos can be used: {_describe(left_out)}")
        found = {}
        for label in common:
            targets = np.array([label in photos[path] for path in scores], np.int64)
            if targets.sum() >= MIN_POSITIVES:
                column = np.array([row[label] for row in scores.values()], np.float64)
                found[label] = find_best_f1(column, targets)
        if not found:
            rest = f"; {_describe(left_out)}" if left_out else ""
            raise StartError(
                f"no label of the set {name} has {MIN_POSITIVES} photos in {folder}{rest}"
            )
        thresholds = {label: point.threshold for label, point in found.items()}
        # Only this version: the labels of another may be encoded from other texts.
        await pipeline.catalogue.set_thresholds(name, thresholds, int(labels.version))
        return Calibration(found, tuple(left_out))


def read_labelled_folder(folder: Path) -> LabelledFolder:
    """Reads `labels.json`; a label of a photo must be in `label_names`."""
    path = folder / LABELS_FILE
    try:
        found = LabelledFolder.model_validate(json.loads(path.read_bytes()))
    except OSError as error:
        raise StartError(f"{path}: {error.strerror or 'unreadable'}") from error
    except ValidationError as error:
        raise StartError(f"{path}: {format_first_error(error)}") from error
    except (ValueError, RecursionError) as error:
        raise StartError(f"{path} is not JSON") from error
    used = {label for image in found.images.values() for label in image.labels}
    unknown = used - set(found.label_names)
    if unknown:  # a typo would count as an absent label
        raise StartError(f"{path}: label_names does not contain the label {min(unknown)}")
    return found


async def _score(
    pipeline: Pipeline, photos: list[Path], question: Question
) -> tuple[dict[Path, dict[str, float]], list[LabelledPhoto]]:
    """Returns the scores by photo and label, and the photos that have none."""
    selection = await pipeline.select(question)
    scores, left_out = {}, []
    async with aclosing(label_photos(pipeline, selection, photos)) as labelled:
        async for photo in labelled:
            if photo.prediction is None:
                left_out.append(photo)
            else:
                labels = photo.prediction.labels
                scores[photo.path] = {label.label: label.score for label in labels}
    return scores, left_out


def _describe(left_out: list[LabelledPhoto]) -> str:
    first = left_out[0]
    return f"{len(left_out)} left out, such as {first.path}: {first.failure}"
