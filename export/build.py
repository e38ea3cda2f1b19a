"""The story of an export: checkpoint -> variants -> accuracy -> thresholds -> bundle.

In: an `ExportRequest`. Out: a written, verified bundle. Each stage's work is in its own
file; this one puts them in order and decides what the manifest says.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError

from export.accuracy.accuracy import measure_map, predict_logits, to_scores
from export.accuracy.calibrate import calibrate_labels
from export.accuracy.open_calibrate import calibrate_label_sets, choose_threshold
from export.errors import ExportError
from export.graphs.graph import Graphs
from export.graphs.text import TextEmbedder, build_text_graph
from export.int8.search import variation_to_noise
from export.open_variants import add_open_head
from export.sources.open import OpenRequest, OpenSource, describe_head, read_open_source
from export.sources.photos import Splits, read_splits
from export.sources.ready_sets import embed_label_set
from export.sources.trained import Source, SourceHints, read_source
from export.variants import Variants, make_variants
from models.config import ZeroShotMLDecoderConfig
from service.bundle.card import (
    Label,
    Metric,
    ModelCard,
    OpenHead,
    Precision,
    Provenance,
    TrainedHead,
)
from service.bundle.manifest import GraphName
from service.bundle.reader import Bundle
from service.bundle.writer import BundleDraft, check_target, write_bundle
from service.labels.files import pack_label_set

_TOOLS = ("torch", "timm", "onnx", "onnxscript", "onnxruntime")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExportRequest:
    """What to export and where to.

    Attributes:
        source: the checkpoint and what it does not tell.
        out: the bundle's folder; its last part becomes the model's name.
        photos: labelled folder with the splits train, val and test; None leaves out int8,
            thresholds and accuracy.
        precisions: variants to write besides fp32, which is always there.
        compact_weights: store fp32 weights in 16 bits.
        model_version: free text without white space.
        license: of the weights.
        training_data: free text; None takes what the checkpoint says.
        opened: an open head to put beside the trained one.
    """

    source: SourceHints
    out: Path
    photos: Path | None = None
    precisions: frozenset[Precision] = frozenset()
    compact_weights: bool = False
    model_version: str = "1"
    license: str = "unknown"
    training_data: str | None = None
    opened: OpenRequest | None = None


def build_bundle(request: ExportRequest) -> Bundle:
    """Exports a checkpoint as a bundle.

    Raises:
        ExportError: with a one-line reason; nothing was written. The same holds of
            `models.checkpoints.layouts.CheckpointError`, `models.data.DataError` and
            `service.bundle.reader.BundleError`.
    """
    check_target(request.out)
    source = read_source(request.source)
    card = _describe(request, source)
    _log.info("read %s with %s", source.config.backbone, _name_labels(source))
    if request.photos is not None and source.is_open:
        raise ExportError("photos measure a head with trained labels; this one is for open labels")
    opened = None if request.opened is None else read_open_source(request.opened, source)
    splits = None if request.photos is None else read_splits(request.photos, source.label_names)
    variants = make_variants(source, splits, request.precisions, request.compact_weights)
    if opened is not None:
        variants = add_open_head(variants, opened, source, request.compact_weights)
    labels = tuple(Label(name=name) for name in source.label_names)
    metrics: tuple[Metric, ...] = ()
    if splits is not None:
        labels = _calibrate(variants, source, splits)
        metrics = _measure(variants, source, splits)
    draft = BundleDraft(
        card=card.model_copy(update={"default_precision": variants.defaults, "metrics": metrics}),
        labels=labels,
        graphs=_serialize(variants),
    )
    if opened is not None:
        draft = _open_up(draft, opened, source, variants.served, splits)
    bundle = write_bundle(request.out, draft)
    _log.info("wrote %s", request.out)
    return bundle


def _open_up(
    draft: BundleDraft, opened: OpenSource, source: Source, graphs: Graphs, splits: Splits | None
) -> BundleDraft:
    """Adds to a bundle what open labels need besides the head's own graphs."""
    text = build_text_graph(opened.text)
    # With the embeddings that will be served: in 8 bits they move scores a little.
    texts = TextEmbedder(opened.text, text)
    threshold = choose_threshold(opened, source, graphs, texts)
    head = opened.describe().model_copy(update={"threshold": threshold})
    return replace(
        draft,
        card=draft.card.model_copy(update={"open_head": head}),
        graphs={**draft.graphs, "text_encoder": {"int8": text.SerializeToString()}},
        tokenizer=opened.text.tokenizer,
        label_sets={
            f"{record.name}.npz": pack_label_set(
                embed_label_set(record, head.embedding_space, texts)
            )
            for record in calibrate_label_sets(opened, source, splits, graphs, texts)
        },
    )


def _name_labels(source: Source) -> str:
    return "open labels" if source.is_open else f"{len(source.label_names)} labels"


def _serialize(variants: Variants) -> dict[GraphName, dict[Precision, bytes]]:
    return {
        name: {
            precision: graphs[name].SerializeToString()
            for precision, graphs in variants.graphs.items()
            if name in graphs
        }
        for name in variants.graphs["fp32"]
    }


def _calibrate(variants: Variants, source: Source, splits: Splits) -> tuple[Label, ...]:
    # With the graphs that will mostly be served: quantisation moves scores a little.
    logits = predict_logits(variants.served, splits.val, source.contract)
    scores = to_scores(logits, source.config.activation)
    labels = calibrate_labels(source.label_names, scores, splits.val.targets)
    found = sum(label.threshold is not None for label in labels)
    _log.info("calibrated %d thresholds on %s", found, splits.val.dataset)
    return labels


def _measure(variants: Variants, source: Source, splits: Splits) -> tuple[Metric, ...]:
    photos = splits.test
    logits = {
        precision: predict_logits(graphs, photos, source.contract)
        for precision, graphs in variants.graphs.items()
    }
    metrics = []
    for precision, found in logits.items():
        value = round(measure_map(found, photos, source.config.activation), 2)
        _log.info("%s: %.2f mAP on %s", precision, value, photos.dataset)
        if precision != "fp32":
            noise = variation_to_noise(logits["fp32"], found)
            _log.info("%s: logits vary %.1f dB above their deviation from fp32", precision, noise)
        metrics.append(
            Metric(
                name="mAP",
                value=value,
                precision=precision,
                dataset=photos.dataset,
                images=len(photos.paths),
            )
        )
    return tuple(metrics)


def _describe(request: ExportRequest, source: Source) -> ModelCard:
    """Returns the card as far as it is known before anything is measured."""
    try:
        return ModelCard(
            name=request.out.name,
            version=request.model_version,
            license=request.license,
            provenance=Provenance(
                backbone=source.config.backbone,
                checkpoint_sha256=source.sha256,
                training_data=request.training_data or source.training_data,
                tools={tool: version(tool) for tool in _TOOLS},
            ),
            input=source.contract,
            trained_head=_describe_trained(source),
            open_head=_describe_open(source),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ExportError(f"model {first['loc'][0]}: {first['msg']}") from error


def _describe_trained(source: Source) -> TrainedHead | None:
    config = source.config
    if config.num_classes is None:
        return None
    return TrainedHead(
        kind=config.head.kind, num_labels=config.num_classes, activation=config.activation
    )


def _describe_open(source: Source) -> OpenHead | None:
    head = source.config.head
    return describe_head(head) if isinstance(head, ZeroShotMLDecoderConfig) else None
