"""Calibrating: labelled photos -> thresholds of a registered label set.

In: the name of a set and a folder with `labels.json` ({name, label_names, images: {file: {split,
labels}}}) and `images/`. Out: the set with new thresholds in the store. Photos go through the
service's own pipeline, so the scores are those that clients will see.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ValidationError

from service.bundle.card import format_first_error
from service.cli.photos import label_with
from service.errors import LabelSetReadOnly, StartError
from service.labels.calibration import MIN_POSITIVES, OperatingPoint, find_best_f1
from service.labels.question import Question
from service.labels.text import LabelText
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.settings import Settings

LABELS_FILE = "labels.json"


class LabelledImage(BaseModel):
    """One photo of a folder; every label that is not named is absent."""

    split: str | None = None
    labels: list[LabelText]


class LabelledFolder(BaseModel):
    """A folder of photos whose `label_names` are all looked for in every photo.

    Names are brought into the form that those of label sets have: macOS tends to write another.
    """

    label_names: list[LabelText]
    images: dict[str, LabelledImage]


async def calibrate_set(
    settings: Settings, name: str, folder: Path, split: str | None = None
) -> dict[str, OperatingPoint]:
    """Sets the thresholds of a set's labels that the folder names often enough.

    Args:
        settings: bundle, store and device.
        name: a registered set.
        folder: labelled photos.
        split: only the photos of this split; None takes all.

    Returns:
        For each label that got a threshold, where it now operates.

    Raises:
        StartError: the folder cannot be used.
        LabelSetChanged: the set was changed while its photos were scored.
        ServiceError: the set cannot be changed, or a photo cannot be used.
    """
    labelled = read_labelled_folder(folder)
    photos = _choose_photos(folder, labelled, split)
    pipeline = open_pipeline(settings)
    await pipeline.start()
    try:
        labels = pipeline.catalogue.find(name)
        if labels.read_only:  # before the photos, which may take minutes
            raise LabelSetReadOnly(name)
        named = set(labelled.label_names)
        common = tuple(label for label in labels.names if label in named)
        if not common:
            raise StartError(f"{folder} has no label of the set {name}")
        question = Question(label_set=[name], top_k=len(labels.names))
        found = _find_thresholds(common, photos, await _score(pipeline, photos, question))
        if not found:
            raise StartError(f"no label of the set {name} has {MIN_POSITIVES} photos in {folder}")
        thresholds = {label: point.threshold for label, point in found.items()}
        # Scores of this version: another one's labels may be encoded from other texts.
        await pipeline.catalogue.set_thresholds(name, thresholds, int(labels.version))
        return found
    finally:
        await pipeline.drain()


def read_labelled_folder(folder: Path) -> LabelledFolder:
    """Reads the labels of a folder.

    Raises:
        StartError: it is no labelled folder, or a photo has a label that is not among its names.
    """
    try:
        found = LabelledFolder.model_validate(json.loads((folder / LABELS_FILE).read_bytes()))
    except OSError as error:
        raise StartError(f"{folder / LABELS_FILE}: {error.strerror or 'unreadable'}") from error
    except ValidationError as error:
        raise StartError(f"{folder / LABELS_FILE}: {format_first_error(error)}") from error
    except (ValueError, RecursionError) as error:
        raise StartError(f"{folder / LABELS_FILE} is not JSON") from error
    used = {label for image in found.images.values() for label in image.labels}
    unknown = used - set(found.label_names)
    if unknown:  # a slip of the pen would count as a photo without the label
        raise StartError(f"{folder / LABELS_FILE} uses a label it does not name: {min(unknown)}")
    return found


def _choose_photos(
    folder: Path, labelled: LabelledFolder, split: str | None
) -> dict[Path, set[str]]:
    photos = {
        folder / "images" / file: set(image.labels)
        for file, image in labelled.images.items()
        if split is None or image.split == split
    }
    if not photos:
        wanted = "" if split is None else f" of the split {split}"
        raise StartError(f"{folder} has no photo{wanted}")
    return photos


async def _score(
    pipeline: Pipeline, photos: dict[Path, set[str]], question: Question
) -> list[dict[str, float]]:
    scores = []
    async for photo in label_with(pipeline, list(photos), question):
        if photo.prediction is None:
            raise StartError(f"{photo.path}: {photo.failure}")
        scores.append({label.label: label.score for label in photo.prediction.labels})
    return scores


def _find_thresholds(
    names: Sequence[str], photos: dict[Path, set[str]], scores: list[dict[str, float]]
) -> dict[str, OperatingPoint]:
    found = {}
    for name in names:
        targets = np.array([name in present for present in photos.values()], np.int64)
        if targets.sum() >= MIN_POSITIVES:
            column = np.array([row[name] for row in scores], np.float64)
            found[name] = find_best_f1(column, targets)
    return found
