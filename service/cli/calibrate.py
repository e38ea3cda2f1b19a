"""`ml-decoder labels calibrate`: scores and thresholds of a registered set from labelled photos.

A folder has `labels.json` ({name, label_names, images: {file: {split, labels}}}) and `images/`.
Photos go through the service's own pipeline, so that the scores are those of the service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from service.bundle.card import Calibration, format_first_error
from service.calibration import (
    MIN_POSITIVES,
    Fit,
    OperatingPoint,
    find_thresholds,
    fit_calibration,
    move_threshold,
)
from service.cli.photos import PhotoResult, label_photos, run_pipeline
from service.errors import LabelSetReadOnly, StartError
from service.fields import LabelText
from service.labels.label_set import LabelSet
from service.pipeline.pipeline import Pipeline
from service.pipeline.scoring import compute_scores
from service.question import Question
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
class CalibrationReport:
    """The results of a calibration."""

    fit: Fit | None  # None: the set keeps the calibration that it had
    points: Mapping[str, OperatingPoint]  # by label
    not_reached: tuple[str, ...]  # labels with enough photos that miss the wanted precision
    left_out: tuple[PhotoResult, ...]  # photos that have no prediction


async def calibrate_set(
    settings: Settings,
    name: str,
    folder: Path,
    split: str | None = None,
    precision_target: float | None = None,
) -> CalibrationReport:
    """Calibrates the scores of a set, and sets thresholds of labels with `MIN_POSITIVES` photos.

    A threshold is that of best F1, or the lowest that reaches `precision_target` (0..1). Given a
    split, only its photos count; photos that cannot be used are left out. Raises LabelSetChanged if
    the set was changed meanwhile, and StartError for an unusable folder.
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
        if labels.activation == "softmax":
            raise StartError(
                f"set {name} has softmax scores: calibrate the model first, with `ml-decoder "
                "export --bundle BUNDLE --open-photos FOLDER --out BUNDLE`"
            )
        named = set(labelled.label_names)
        common = tuple(label for label in labels.names if label in named)
        if not common:
            raise StartError(f"{folder} has no label of the set {name}")
        question = Question(label_set=[name], top_k=len(labels.names))
        answers, left_out = await _score(pipeline, list(photos), question)
        if not answers:
            raise StartError(f"none of the photos can be used: {_describe(left_out)}")
        targets = np.array(
            [[label in photos[path] for label in common] for path in answers], np.int64
        )
        if targets.sum(axis=0).max() < MIN_POSITIVES:
            rest = f"; {_describe(left_out)}" if left_out else ""
            raise StartError(
                f"no label of the set {name} has {MIN_POSITIVES} photos in {folder}{rest}"
            )
        scores = np.array([[row[label] for label in common] for row in answers.values()])
        fit, points, not_reached = _fit(labels, common, scores, targets, precision_target)
        calibration = None if fit is None else fit.pair
        kept = {} if fit is None else _move_thresholds(labels, fit.pair)
        thresholds = kept | {label: point.threshold for label, point in points.items()}
        # Only this version: the labels of another may be encoded from other texts.
        await pipeline.catalogue.writable(name).calibrate(
            name, thresholds, calibration, int(labels.version)
        )
        return CalibrationReport(fit, points, not_reached, tuple(left_out))


def _fit(
    labels: LabelSet,
    common: Sequence[str],
    scores: NDArray[np.float64],
    targets: NDArray[np.int64],
    precision_target: float | None,
) -> tuple[Fit | None, dict[str, OperatingPoint], tuple[str, ...]]:
    """Fits scores [n, L] of labels of a set, as they are served, to targets [n, L]."""
    smallest = np.finfo(np.float64).eps  # a score of 1 has no log odds
    clipped = scores.clip(smallest, 1 - smallest)
    current = logits = np.log(clipped / (1 - clipped))
    if labels.calibration is not None:
        scales, shifts = labels.calibration[:, [labels.positions[label] for label in common]]
        logits = (current - shifts) / scales
    fit = fit_calibration(logits, targets, per_label=False, current=current)
    if fit is not None:
        scores = compute_scores(logits, "sigmoid", fit.stack())
    found = find_thresholds(common, scores, targets, precision_target)
    points = {label: point for label, point in found.items() if point is not None}
    return fit, points, tuple(label for label, point in found.items() if point is None)


def _move_thresholds(labels: LabelSet, after: Calibration) -> dict[str, float]:
    """Returns the labels' own thresholds on the new scores, which the same photos reach."""
    moved = {}
    for position in np.flatnonzero(labels.calibrated):
        scale, shift = (1.0, 0.0) if labels.calibration is None else labels.calibration[:, position]
        before = Calibration(scale=scale, shift=shift)
        threshold = float(labels.thresholds[position])
        moved[labels.names[position]] = move_threshold(threshold, before, after)
    return moved


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
) -> tuple[dict[Path, dict[str, float]], list[PhotoResult]]:
    """Returns the scores by photo and label, and the photos without scores."""
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


def _describe(left_out: list[PhotoResult]) -> str:
    first = left_out[0]
    return f"{len(left_out)} left out, such as {first.path}: {first.failure}"
