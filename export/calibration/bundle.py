"""Calibrates a finished bundle again on labelled photos; its graphs stay the same bytes."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from export import ExportError
from export.accuracy import check_blank, predict_blank, predict_logits, read_graphs
from export.calibration.heads import (
    CalibrationOptions,
    ScoredPhotos,
    calibrate_open,
    calibrate_trained,
    calibrate_trained_names,
    find_open_thresholds,
)
from export.calibration.open_labels import embed_label_set, score_names
from export.graphs.graph import PIXELS_TO_LOGITS, PIXELS_TO_OPEN_LOGITS
from export.graphs.text import EmbedTexts
from export.sources.open import read_unseen
from export.sources.photos import keep_usable, select_photos
from models.data import read_labelled_folder
from service.bundle.card import (
    Calibration,
    ModelCard,
    OpenHead,
    fold_name,
    format_first_error,
    write_prompt,
)
from service.bundle.reader import Bundle, load_bundle
from service.bundle.writer import BundleDraft, check_target, write_bundle
from service.calibration import move_threshold
from service.labels.definition import Definition
from service.labels.encoders import open_text_encoder
from service.labels.files import pack_label_set, read_bundle_sets

# Largest difference of a stored embedding, in 16 bits, from that of the label's name.
_SAME_EMBEDDING = 2e-3
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecalibrationRequest:
    """A bundle to calibrate; at least one of the folders is needed."""

    bundle: Path
    out: Path  # may be the bundle itself
    photos: Path | None = None  # labelled folder with the trained labels and a split val
    # Labelled folder with other labels; without it, open labels keep calibration and threshold.
    open_photos: Path | None = None
    open_split: str = "val"
    model_version: str | None = None  # None keeps the bundle's
    rules: CalibrationOptions = field(default_factory=CalibrationOptions)


def recalibrate_bundle(request: RecalibrationRequest, left_out: set[Path]) -> Bundle:
    """Writes a bundle with new calibrations and thresholds; writes nothing if a step fails.

    Adds the photos that cannot be used to `left_out`. Raises ExportError, DataError or BundleError.
    """
    check_target(request.out)
    bundle = load_bundle(request.bundle)
    card, labels = _describe(request, bundle.card), bundle.labels
    text_encoder = open_text_encoder(bundle, threads=1)
    _check_heads(request, bundle.card, encodes_text=text_encoder is not None)
    names = tuple(label.name for label in labels)
    definitions = read_bundle_sets(bundle)
    val = unseen = None
    if request.photos is not None:
        folder = read_labelled_folder(request.photos)
        val = keep_usable(select_photos(folder, "val", names), card.input, left_out)
    if request.open_photos is not None:
        split = request.open_split
        unseen = read_unseen(request.open_photos, split, names, card.input, left_out)

    rules = request.rules
    precisions = dict.fromkeys((bundle.default_precision("cpu"), *bundle.precisions()))
    trained, opened = card.trained_head, card.open_head
    sets = bundle.read_label_sets()
    if val is not None and trained is not None:
        variants = [read_graphs(bundle, PIXELS_TO_LOGITS, each) for each in precisions]
        logits = predict_logits(variants[0], val, card.input)
        scored = ScoredPhotos(val, logits, predict_blank(variants, card.input))
        trained, labels = calibrate_trained(trained, labels, scored, rules)
    if opened is not None and text_encoder is not None:
        variants = [read_graphs(bundle, PIXELS_TO_OPEN_LOGITS, each) for each in precisions]
        embed = text_encoder.encode
        if unseen is not None:
            scored = score_names(unseen, variants, opened, card.input, embed)
            opened = calibrate_open(opened, scored, rules)
        by_name = None
        if val is not None:
            by_name = score_names(val, variants, opened, card.input, embed)
            opened = calibrate_trained_names(opened, by_name)
        folded = frozenset(map(fold_name, names))
        change = _Change(card.open_head or opened, opened, folded, by_name, rules, embed)
        sets = {f"{each.name}.npz": pack_label_set(change.apply(each)) for each in definitions}
    draft = BundleDraft(
        card=card.model_copy(update={"trained_head": trained, "open_head": opened}),
        labels=labels,
        graphs={
            graph: {precision: bundle.read_graph(graph, precision) for precision in files}
            for graph, files in bundle.manifest.graphs.items()
        },
        tokenizer=bundle.read_tokenizer() if text_encoder is not None else None,
        label_sets=sets,
    )
    written = write_bundle(request.out, draft)
    check_blank(written)
    logger.info("wrote %s", request.out)
    return written


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
    if not request.rules.raw_scores:
        return
    # Their thresholds are on the calibrated scale.
    if trained is not None and trained.calibration is not None and request.photos is None:
        raise ExportError("--raw-scores needs --photos: the trained head is calibrated")
    if opened is not None and opened.calibration is not None and request.open_photos is None:
        raise ExportError("--raw-scores needs --open-photos: the open head is calibrated")


@dataclass(frozen=True, eq=False)
class _Change:
    """Puts the thresholds of label sets on the scores of a changed open head."""

    before: OpenHead
    after: OpenHead
    trained_names: Collection[str]  # as `fold_name` returns them
    scored: ScoredPhotos | None  # the open head's logits of the trained labels
    rules: CalibrationOptions
    embed: EmbedTexts

    def apply(self, definition: Definition) -> Definition:
        """Returns a set with all embeddings and its new thresholds."""
        space = self.after.embedding_space
        embedded = embed_label_set(definition, space, self.embed)
        found: dict[str, float] = {}
        if self.scored is not None:
            calibration = definition.calibration or self.after.trained_names
            calibration = calibration or self.after.calibration
            found = find_open_thresholds(self.scored, calibration, self.rules)
        measured = self._find_measured(embedded)
        return replace(
            embedded,
            thresholds=tuple(
                found.get(name) if name in measured else self._move(definition, name, threshold)
                for name, threshold in zip(embedded.names, embedded.thresholds, strict=True)
            ),
        )

    def _find_measured(self, embedded: Definition) -> set[str]:
        """Returns the labels that are scored by the names of trained labels."""
        if self.scored is None:
            return set()
        names = self.scored.photos.label_names
        template = self.after.embedding_space.template
        texts = self.embed([write_prompt(template, name) for name in names])
        by_name = dict(zip(names, texts, strict=True))
        return {
            name
            for name, embedding in zip(embedded.names, embedded.embeddings, strict=True)
            if name in by_name and np.allclose(embedding, by_name[name], atol=_SAME_EMBEDDING)
        }

    def _move(self, definition: Definition, name: str, threshold: float | None) -> float | None:
        """Returns the threshold on the new scores that the same photos reach."""
        if threshold is None or definition.calibration is not None:
            return threshold
        before, after = (self._find_pair(head, name) for head in (self.before, self.after))
        return move_threshold(threshold, before, after)

    def _find_pair(self, head: OpenHead, name: str) -> Calibration:
        found = head.find_calibration(name, self.trained_names)
        return found or Calibration(scale=1.0, shift=0.0)
