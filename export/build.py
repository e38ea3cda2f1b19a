"""An export from top to bottom: checkpoint, graphs, verification, precisions, accuracy, bundle."""

import argparse
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from onnx import helper
from pydantic import ValidationError

from export import ExportError
from export.accuracy import finish_bundle, measure_map, predict_logits, score_photos
from export.calibration.background import add_background, find_background_photos
from export.calibration.bundle import make_request
from export.calibration.heads import CalibrationOptions, calibrate_trained
from export.calibration.open_labels import calibrate_open_labels
from export.calibration.screen import add_screen
from export.graphs.graph import Graphs
from export.graphs.text import build_text_graph, make_embedder
from export.int8.search import variation_to_noise
from export.sources.label_sets import EVERYDAY_WORDS, read_words
from export.sources.labelled_photos import PhotoReader, Splits, find_measured, read_splits
from export.sources.open import OpenRequest, OpenSource, describe_head, read_open_source
from export.sources.trained import Source, read_source
from export.variants import Variants, add_open_head, make_variants
from models.checkpoints.description import NO_HINTS, Hints, read_hints
from models.config import OpenHeadConfig, RamConfig
from models.heads.zero_shot import ZeroShotMLDecoder
from service.bundle.card import (
    FALLBACK_THRESHOLD,
    Metric,
    ModelCard,
    Precision,
    Provenance,
    TrainedHead,
    format_first_error,
)
from service.bundle.manifest import GraphName
from service.bundle.reader import Bundle
from service.bundle.writer import BundleDraft, check_target
from service.calibration import MIN_POSITIVES

_TOOLS = ("torch", "timm", "transformers", "onnx", "onnxscript", "onnxruntime")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExportRequest:
    """A checkpoint to export, with its options, which the command's help describes."""

    checkpoint: Path  # the file, or `hf-hub:owner/name`
    out: Path  # the bundle's folder; its last part becomes the model's name
    photos: Path | None = None
    precisions: frozenset[Precision] = frozenset()  # besides fp32, which is always written
    hints: Hints = NO_HINTS
    label_names: Path | None = None
    label_thresholds: Path | None = None
    category_threshold: Sequence[str] = ()
    compact_weights: bool = False
    model_version: str = "1"
    license: str = "unknown"
    training_data: str | None = None
    background: Path | None = None
    words: Path | None = None  # None: those of `EVERYDAY` if no other set is given
    opened: OpenRequest | None = None  # an open head to export with the trained one
    options: CalibrationOptions = field(default_factory=CalibrationOptions)


def run_export(given: argparse.Namespace, left_out: set[Path]) -> None:
    """Carries out the parsed options; adds the photos that cannot be used to `left_out`."""
    asks_open = any((given.open_head, given.open_photos, given.label_set))
    request = make_request(
        ExportRequest,
        given,
        precisions=frozenset(given.precision),
        hints=read_hints(given),
        opened=make_request(OpenRequest, given) if asks_open else None,
    )
    build_bundle(request, left_out)


def build_bundle(request: ExportRequest, left_out: set[Path] | None = None) -> Bundle:
    """Exports a checkpoint as a bundle; writes nothing if a step fails.

    Photos that cannot be used are logged, and added to `left_out`. Raises ExportError,
    another RequestError or BundleError, in one line.
    """
    # Read and check everything before the work that takes minutes.
    check_target(request.out)
    source = read_source(
        *(request.checkpoint, request.hints, request.label_names),
        *(request.label_thresholds, request.category_threshold),
    )
    card = _describe(request, source)
    names, contract = source.label_names, card.input
    labels = "open labels" if source.is_open else f"{len(names)} labels"
    logger.info(
        "read %s with %s, for photos of %d x %d pixels",
        *(card.provenance.backbone, labels, contract.width, contract.height),
    )
    channels = (request.hints.channels or "rgb").upper()
    logger.info("photos: %s, channels %s", contract.describe(), channels)
    if request.photos is not None and source.is_open:
        raise ExportError("photos measure a head with trained labels; this one is for open labels")
    if source.is_open and source.text is None and "int8" in request.precisions:
        raise ExportError("int8 needs trained labels or a text encoder; this head has neither")
    reader = PhotoReader(contract, left_out)
    opened = splits = None
    if request.opened is not None or source.text is not None:
        opened = read_open_source(request.opened or OpenRequest(), source, reader)
    if request.photos is not None:
        splits = read_splits(request.photos, names, reader)
    background = find_background_photos(request.background, splits, opened, reader)
    has_everyday = source.is_open and not (request.opened and request.opened.label_set)
    path = request.words or (EVERYDAY_WORDS if has_everyday else None)
    words = None if path is None else read_words(path)

    # Trace, optimise and verify the graphs; make the other precisions.
    compact = request.compact_weights
    measured = find_measured(splits, background)
    variants = make_variants(source, measured, request.precisions, compact=compact)
    if opened is not None and source.text is None:
        variants = add_open_head(variants, opened.head, source, compact=compact)

    # Calibrate scores and choose thresholds on the validation photos; measure accuracy on others.
    draft = BundleDraft(
        card=card.model_copy(update={"default_precision": variants.defaults}),
        labels=source.labels,
        graphs=_serialize(variants, card, names),
        words=words,
    )
    if splits is not None:
        draft = _measure(draft, variants, splits, request.options)
    if opened is not None:
        draft = _add_open_labels(
            draft, opened, variants.measured, splits, request.options, compact=compact
        )
    return finish_bundle(request.out, add_background(draft, background))


def _describe(request: ExportRequest, source: Source) -> ModelCard:
    """Returns the card without measurements."""
    config = source.network.config
    head = config.head
    trained = opened = None
    if isinstance(head, OpenHeadConfig):
        opened = describe_head(head, config.activation)
    if config.num_classes is not None:
        trained = TrainedHead(
            kind=head.kind,
            num_labels=config.num_classes,
            activation=config.activation,
            threshold=head.threshold if isinstance(head, RamConfig) else FALLBACK_THRESHOLD,
        )
    try:
        return ModelCard(
            name=request.out.name,
            version=request.model_version,
            license=request.license,
            provenance=Provenance(
                backbone=config.backbone,
                prefix_tokens=source.prefix_tokens,
                checkpoint_sha256=source.sha256,
                training_data=request.training_data or source.training_data,
                tools={tool: version(tool) for tool in _TOOLS},
            ),
            input=source.contract,
            trained_head=trained,
            open_head=opened,
        )
    except ValidationError as error:
        raise ExportError(f"model {format_first_error(error)}") from error


def _serialize(
    variants: Variants, card: ModelCard, names: tuple[str, ...]
) -> dict[GraphName, dict[Precision, bytes]]:
    photos = card.input
    facts = {  # viewers of graphs, such as Netron, show them
        "name": card.name,
        "version": card.version,
        "input": f"uint8 RGB [B, {photos.height}, {photos.width}, 3], {photos.describe()}",
        "labels": json.dumps(names, ensure_ascii=False),
    }
    for graphs in variants.graphs.values():
        for model in graphs.values():
            helper.set_model_props(model, facts)
    return {
        name: {
            precision: graphs[name].SerializeToString()
            for precision, graphs in variants.graphs.items()
            if name in graphs
        }
        for name in variants.graphs["fp32"]
    }


def _measure(
    draft: BundleDraft, variants: Variants, splits: Splits, options: CalibrationOptions
) -> BundleDraft:
    """Adds the labels' calibrations and thresholds, and each variant's accuracy."""
    head = draft.card.trained_head
    assert head is not None  # photos were refused otherwise
    # Calibrates with the graphs that a CPU runs by default: quantisation moves scores a little.
    scored = score_photos(splits.val, variants.measured)
    head, labels = calibrate_trained(head, draft.labels, scored, options)
    chosen = sum(label.threshold is not None for label in labels)
    logger.info(
        "chose %d of %d thresholds on %s (a label needs %d photos that show it)",
        *(chosen, len(labels), splits.val.dataset, MIN_POSITIVES),
    )

    photos, metrics = splits.test, []
    measured_on: dict[str, Any] = {"dataset": photos.dataset, "images": len(photos.paths)}
    exact = predict_logits(variants.graphs["fp32"], photos)
    for precision, graphs in variants.graphs.items():
        logits = exact if precision == "fp32" else predict_logits(graphs, photos)
        value = round(measure_map(logits, photos.targets, head.activation), 2)
        logger.info("%s: %.2f mAP on %s", precision, value, photos.dataset)
        if precision != "fp32":
            noise = variation_to_noise(exact, logits)
            logger.info("%s: logits vary %.1f dB above their deviation from fp32", precision, noise)
        metrics.append(Metric(name="mAP", value=value, precision=precision, **measured_on))
    card = draft.card.model_copy(update={"trained_head": head, "metrics": tuple(metrics)})
    return replace(draft, card=card, labels=labels)


def _add_open_labels(  # noqa: PLR0913 - the parts of an export
    draft: BundleDraft,
    opened: OpenSource,
    variants: Sequence[Graphs],
    splits: Splits | None,
    options: CalibrationOptions,
    *,
    compact: bool,
) -> BundleDraft:
    """Adds what an open head needs; the first of `variants` is what a CPU runs by default."""
    text = build_text_graph(opened.text, compact=compact)
    precision: Precision = "int8" if opened.text.in_8_bits else "fp32"
    embed = make_embedder(opened.text, text)
    uses_names = opened.label_sets or opened.unseen is not None
    head, sets = calibrate_open_labels(
        draft.card.open_head or describe_head(opened.head.config),
        opened.label_sets,
        opened.unseen,
        splits.val if splits is not None and uses_names else None,
        variants,
        embed=embed,
        options=options,
    )
    draft = replace(
        draft,
        card=draft.card.model_copy(update={"open_head": head}),
        graphs={**draft.graphs, "text_encoder": {precision: text.SerializeToString()}},
        tokenizer=opened.text.tokenizer,
        label_sets=sets,
    )
    if splits is None or not isinstance(opened.head, ZeroShotMLDecoder):
        return draft
    return add_screen(draft, opened.head, variants[0], splits, embed, compact=compact)
