"""An open head's text encoder, threshold and ready label sets.

They are computed with the served graphs and text embeddings: 8 bits move scores a little.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from export.accuracy import calibrate_labels, predict_logits, to_scores
from export.graphs.graph import Graphs
from export.graphs.text import TextEmbedder, build_text_graph
from export.sources.open import OpenSource, describe_head
from export.sources.photos import Splits
from export.sources.trained import Source
from service.bundle.card import EmbeddingSpace
from service.bundle.writer import BundleDraft
from service.labels.calibration import find_best_f1
from service.labels.definition import Definition, LabelSetRecord, check_fit, define_label_set
from service.labels.files import pack_label_set

_log = logging.getLogger(__name__)


def add_open_labels(
    draft: BundleDraft, opened: OpenSource, source: Source, graphs: Graphs, splits: Splits | None
) -> BundleDraft:
    """Adds all three to a draft; `graphs` are those that a CPU runs by default."""
    text = build_text_graph(opened.text)
    texts = TextEmbedder(opened.text, text)
    threshold = choose_threshold(opened, source, graphs, texts)
    head = describe_head(opened.head.config, threshold)
    records = calibrate_label_sets(opened, source, splits, graphs, texts)
    sets = [embed_label_set(record, head.embedding_space, texts) for record in records]
    return replace(
        draft,
        card=draft.card.model_copy(update={"open_head": head}),
        graphs={**draft.graphs, "text_encoder": {"int8": text.SerializeToString()}},
        tokenizer=opened.text.tokenizer,
        label_sets={f"{embedded.name}.npz": pack_label_set(embedded) for embedded in sets},
    )


def choose_threshold(
    opened: OpenSource, source: Source, graphs: Graphs, texts: TextEmbedder
) -> float | None:
    """Returns the score (0..1) of best F1 over all unseen labels at once; None without photos."""
    photos = opened.unseen
    if photos is None:
        return None
    embeddings = texts.embed_names(photos.label_names, opened.template)
    logits = predict_logits(graphs, photos, source.contract, embeddings)
    best = find_best_f1(to_scores(logits, "sigmoid").ravel(), photos.targets.ravel())
    _log.info(
        "open labels: threshold %.3f, precision %.2f and recall %.2f over %d labels of %s",
        *(best.threshold, best.precision, best.recall, len(photos.label_names), photos.dataset),
    )
    return best.threshold


def calibrate_label_sets(
    opened: OpenSource,
    source: Source,
    splits: Splits | None,
    graphs: Graphs,
    texts: TextEmbedder,
) -> tuple[LabelSetRecord, ...]:
    """Calibrates labels of ready sets that are trained labels too and have no threshold yet."""
    if splits is None or not opened.label_sets:
        return opened.label_sets
    embeddings = texts.embed_names(source.label_names, opened.template)
    logits = predict_logits(graphs, splits.val, source.contract, embeddings)
    scores = to_scores(logits, "sigmoid")
    found = calibrate_labels(source.label_names, scores, splits.val.targets)
    thresholds = {label.name: label.threshold for label in found if label.threshold is not None}
    return tuple(_calibrate(record, thresholds) for record in opened.label_sets)


def _calibrate(record: LabelSetRecord, thresholds: Mapping[str, float]) -> LabelSetRecord:
    labels = [
        label
        if label.threshold is not None or label.prompt or label.embedding
        else label.model_copy(update={"threshold": thresholds.get(label.name)})
        for label in record.labels
    ]
    own = sum(label.threshold is not None for label in labels)
    _log.info("label set %s: %d of %d labels calibrated", record.name, own, len(labels))
    return record.model_copy(update={"labels": labels})


def embed_label_set(
    record: LabelSetRecord, space: EmbeddingSpace, texts: TextEmbedder
) -> Definition:
    """Embeds every label of a checked set, so that a service encodes no text when it starts."""
    definition = define_label_set(record)
    given = dict(zip(definition.given, definition.embeddings, strict=True))
    missing = [i for i in range(len(definition.names)) if i not in given]
    prompts = definition.texts(space)
    given |= zip(missing, texts.embed([prompts[i] for i in missing]), strict=True)
    embedded = replace(
        definition,
        given=tuple(range(len(given))),
        embeddings=np.stack([given[i] for i in range(len(given))]),
        embedding_space=space.fingerprint,
    )
    check_fit(embedded, space, encodes_text=True)
    return embedded
