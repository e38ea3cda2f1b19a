"""`ml-decoder labels calibrate`: scores and thresholds of a registered set from labelled photos.

A folder has `labels.json` ({name, label_names, images: {file: {split, labels}}}) and `images/`.
Photos go through the service's own pipeline, so that the scores are those of the service.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.archive.tables import LabelledImages
from service.bundle.card import Calibration, MeasuredThreshold, format_first_error
from service.calibration import MIN_POSITIVES, Fit, find_thresholds, fit_calibration, move_threshold
from service.cli.console import write_json
from service.cli.local_pipeline import PhotoResult, run_pipeline, use_photos
from service.errors import LabelSetReadOnly, StartError
from service.fields import LabelText
from service.labels.label_set import LabelSet
from service.pipeline.pipeline import Pipeline
from service.pipeline.scoring import compute_scores
from service.question import Question
from service.settings import Settings

Points = dict[str, MeasuredThreshold | None]
"""By label with enough photos; None: it misses the wanted precision."""


class LabelledFolder(LabelledImages):
    """Contents of `labels.json`; names are normalised like those of label sets (macOS uses NFD)."""

    label_names: list[LabelText]


async def calibrate_set(  # noqa: PLR0913 - a command has a parameter for each flag
    settings: Settings,
    name: str,
    folder: Path,
    split: str | None,
    precision_target: float | None,
    *,
    as_json: bool,
) -> list[PhotoResult]:
    """Calibrates the scores of a set, and sets thresholds of labels with `MIN_POSITIVES` photos.

    Shows both, and returns the photos that are not used. `precision_target` is 0..1. Raises
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
        if labels.activation == "softmax":
            raise StartError(
                f"set {name} has softmax scores: calibrate the model first, with `ml-decoder "
                "export --bundle BUNDLE --open-photos FOLDER --out BUNDLE`"
            )
        named = set(labelled.label_names)
        common = [label for label in labels.names if label in named]
        if not common:
            raise StartError(f"{folder} has no label of the set {name}")
        question = Question(label_set=[name], top_k=len(labels.names))
        answers, left_out = await _score(pipeline, list(photos), question)
        if not answers:
            raise StartError(f"none of the photos can be used: {_describe(left_out)}")
        targets = np.array([[label in photos[path] for label in common] for path in answers], int)
        if targets.sum(axis=0).max() < MIN_POSITIVES:
            rest = f"; {_describe(left_out)}" if left_out else ""
            raise StartError(
                f"no label of the set {name} has {MIN_POSITIVES} photos in {folder}{rest}"
            )
        scores = np.array([[row[label] for label in common] for row in answers.values()])
        fit, points = _fit(labels, common, scores, targets, precision_target)
        pair = None
        thresholds: dict[str, float] = {}
        if fit is not None:
            pair = Calibration(scale=fit.shared.scale, shift=fit.shared.shift)
            thresholds = _move_thresholds(labels, pair)
        thresholds |= {label: point.threshold for label, point in points.items() if point}
        # Only this version: the labels of another may be encoded from other texts.
        sets = pipeline.catalogue.writable(name)
        await sets.calibrate(name, thresholds, pair, int(labels.version))
    (_write_json if as_json else _show_table)(name, fit, points, len(left_out))
    return left_out


def _fit(
    labels: LabelSet,
    common: Sequence[str],
    scores: NDArray[np.float64],
    targets: NDArray[np.int64],
    precision_target: float | None,
) -> tuple[Fit | None, Points]:
    """Fits scores [n, L] of labels of a set, as they are served, to targets [n, L]."""
    smallest = np.finfo(np.float64).eps  # a score of 1 has no log odds
    clipped = scores.clip(smallest, 1 - smallest)
    current = np.log(clipped / (1 - clipped))
    positions = np.array([labels.positions[label] for label in common])
    (free,) = (~np.isin(positions, labels.fitted)).nonzero()  # others keep the scores of their fit
    fit = None
    if len(free):
        scales, shifts = labels.pairs[:, positions[free]]
        logits = (current[:, free] - shifts) / scales
        fit = fit_calibration(logits, targets[:, free], per_label=False, current=current[:, free])
    if fit is not None:
        scores = scores.copy()
        scores[:, free] = compute_scores(logits, "sigmoid", fit.stack())
    return fit, find_thresholds(common, scores, targets, precision_target)


def _move_thresholds(labels: LabelSet, after: Calibration) -> dict[str, float]:
    columns = zip(labels.own_thresholds, *labels.pairs, strict=True)
    return {
        labels.names[place]: move_threshold(own, Calibration(scale=scale, shift=shift), after)
        for place, (own, scale, shift) in enumerate(columns)
        if own is not None and place not in labels.fitted
    }


def read_labelled_folder(folder: Path) -> LabelledFolder:
    """Reads `labels.json`; a label of a photo must be in `label_names`."""
    path = folder / "labels.json"
    try:
        listing = LabelledFolder.parse(path.read_bytes())
    except ValidationError as error:
        raise StartError(f"{path}: {format_first_error(error)}") from error
    used = {label for image in listing.images.values() for label in image.labels}
    unknown = used - set(listing.label_names)
    if unknown:  # a typo would count as an absent label
        raise StartError(f"{path}: label_names does not contain the label {min(unknown)}")
    return listing


async def _score(
    pipeline: Pipeline, photos: list[Path], question: Question
) -> tuple[dict[Path, dict[str, float]], list[PhotoResult]]:
    selection = await pipeline.select(question)

    async def score(photo: bytes) -> dict[str, float]:
        labels = (await pipeline.predict(photo, selection)).labels
        return {label.label: label.score for label in labels}

    return await use_photos(pipeline, photos, score)


def _describe(left_out: list[PhotoResult]) -> str:
    first = left_out[0]
    return f"{len(left_out)} left out, such as {first.path}: {first.failure}"


def _write_json(name: str, fit: Fit | None, points: Points, left_out: int) -> None:
    figures = {"scale", "shift", "error_before", "error_after"}
    record = {
        "name": name,
        "calibration": None if fit is None else fit.shared.model_dump(include=figures),
        "thresholds": {label: point.threshold for label, point in points.items() if point},
        "not_reached": [label for label, point in points.items() if not point],
        "left_out": left_out,
    }
    write_json(record)


def _show_table(name: str, fit: Fit | None, points: Points, left_out: int) -> None:
    table = Table("label", "threshold", "precision", "recall", title=Text(name))
    # Labels that miss the wanted precision come last.
    for label, point in sorted(points.items(), key=lambda item: item[1] is None):
        row = ["-", "not reached", "-"]
        if point is not None:
            row = [f"{share:.3f}" for share in (point.threshold, point.precision, point.recall)]
        table.add_row(Text(label), *row)
    console = Console()
    console.print(table)
    scores = "scores as before: the photos are too few, or do not show it better"
    if fit is not None:
        scores = f"scores: {fit.figures}"
    console.print(Text(scores), soft_wrap=True)
    if left_out:
        photos = "photo" if left_out == 1 else "photos"
        console.print(Text(f"{left_out} {photos} left out"), soft_wrap=True)
