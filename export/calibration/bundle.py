"""Calibrates a finished bundle again, or adds background or words; its graphs stay the same."""

import argparse
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from export import ExportError
from export.accuracy import finish_bundle, read_graphs, score_photos
from export.calibration.background import add_background, read_background_photos
from export.calibration.heads import CalibrationOptions, calibrate_trained
from export.calibration.open_labels import calibrate_open_labels
from export.graphs.graph import PIXELS_TO_LOGITS, PIXELS_TO_OPEN_LOGITS
from export.sources.label_sets import read_words
from export.sources.labelled_photos import PhotoReader, read_unseen, select_photos
from models.data.labelled_folder import read_labelled_folder
from service.bundle.card import ModelCard, fold_name, format_first_error
from service.bundle.reader import Bundle, load_bundle
from service.bundle.writer import BundleDraft, check_target
from service.labels.encoders import open_text_encoder
from service.labels.files import read_bundle_sets


@dataclass(frozen=True)
class RecalibrationRequest:
    """A bundle to change, by at least one of the files and folders; None keeps what it has."""

    bundle: Path
    out: Path  # may be the bundle itself
    photos: Path | None = None
    open_photos: Path | None = None
    open_split: str = "val"
    background: Path | None = None
    words: Path | None = None
    model_version: str | None = None
    options: CalibrationOptions = field(default_factory=CalibrationOptions)


RequestT = TypeVar("RequestT")


def make_request(request: type[RequestT], given: argparse.Namespace, **others: object) -> RequestT:
    """Fills a dataclass from the options of the same names; None leaves a field's default."""
    options = CalibrationOptions(given.raw_scores, given.precision_target)
    values: dict[str, Any] = vars(given) | {"options": options} | others
    names = [field.name for field in fields(cast("Any", request)) if values[field.name] is not None]
    return request(**{name: values[name] for name in names})


def recalibrate_bundle(request: RecalibrationRequest, left_out: set[Path]) -> Bundle:
    """Writes a bundle with new calibrations and thresholds; writes nothing if a step fails.

    Adds the photos that cannot be used to `left_out`. Raises ExportError, DataError or BundleError.
    """
    check_target(request.out)
    bundle, options = load_bundle(request.bundle), request.options
    card, labels = _describe(request, bundle.card), bundle.labels
    text_encoder = open_text_encoder(bundle, threads=1)
    _check_heads(request, bundle.card, encodes_text=text_encoder is not None)
    words = bundle.read_words() if request.words is None else read_words(request.words)
    names = tuple(label.name for label in labels)
    reader = PhotoReader(card.input, left_out)
    val = unseen = background = None
    if request.photos is not None:
        folder = read_labelled_folder(request.photos)
        val = select_photos(folder, "val", names, reader).keep_usable()
    if request.open_photos is not None:
        unseen = read_unseen(request.open_photos, request.open_split, names, reader)
    if request.background is not None:
        background = read_background_photos(request.background, reader)

    precisions = dict.fromkeys((bundle.default_precision("cpu"), *bundle.precisions()))
    trained, opened = card.trained_head, card.open_head
    sets = bundle.read_label_sets()
    if val is not None and trained is not None:
        variants = [read_graphs(bundle, PIXELS_TO_LOGITS, precision) for precision in precisions]
        trained, labels = calibrate_trained(trained, labels, score_photos(val, variants), options)
    if opened is not None and text_encoder is not None and (val or unseen):
        variants = [read_graphs(bundle, PIXELS_TO_OPEN_LOGITS, each) for each in precisions]
        opened, sets = calibrate_open_labels(
            *(opened, read_bundle_sets(bundle), unseen, val, variants),
            embed=text_encoder.encode,
            options=options,
            trained_names=frozenset(map(fold_name, names)),
        )
    draft = BundleDraft(
        card=card.model_copy(update={"trained_head": trained, "open_head": opened}),
        labels=labels,
        graphs={
            graph: {precision: bundle.read_graph(graph, precision) for precision in files}
            for graph, files in bundle.manifest.graphs.items()
        },
        tokenizer=bundle.read_tokenizer() if text_encoder is not None else None,
        label_sets=sets,
        background=bundle.read_background(),
        words=words,
    )
    return finish_bundle(request.out, add_background(draft, background))


def _describe(request: RecalibrationRequest, card: ModelCard) -> ModelCard:
    version = card.version if request.model_version is None else request.model_version
    changed = {**card.model_dump(), "name": request.out.name, "version": version}
    try:
        return ModelCard.model_validate(changed)
    except ValidationError as error:
        raise ExportError(f"model {format_first_error(error)}") from error


def _check_heads(request: RecalibrationRequest, card: ModelCard, *, encodes_text: bool) -> None:
    trained, opened = card.trained_head, card.open_head
    if request.photos is not None and trained is None:
        raise ExportError(f"bundle {card.name} has no trained labels, which --photos measures")
    if request.open_photos is not None and not encodes_text:
        raise ExportError(f"bundle {card.name} has no text encoder for labels of --open-photos")
    if not request.options.raw_scores:
        return
    # Their thresholds are on the calibrated scale.
    if trained is not None and trained.calibration is not None and request.photos is None:
        raise ExportError("--raw-scores needs --photos: the trained head is calibrated")
    if opened is not None and opened.calibration is not None and request.open_photos is None:
        raise ExportError("--raw-scores needs --open-photos: the open head is calibrated")
