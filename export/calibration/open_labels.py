"""An open head's text encoder, calibration, thresholds and ready label sets.

They are computed with the served graphs and text embeddings: 8 bits move scores a little.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from export.accuracy import predict_blank, predict_logits
from export.calibration.heads import (
    CalibrationOptions,
    ScoredPhotos,
    calibrate_open,
    calibrate_trained_names,
    find_open_thresholds,
)
from export.calibration.screen import add_screen
from export.graphs.graph import Graphs
from export.graphs.text import EmbedTexts, TextEmbedder, build_text_graph
from export.sources.open import OpenSource, describe_head
from export.sources.photos import LabelledPhotos, Splits
from models.heads.zero_shot import ZeroShotMLDecoder
from service.bundle.card import EmbeddingSpace, InputContract, OpenHead, Precision, write_prompt
from service.bundle.writer import BundleDraft
from service.labels.definition import Definition, LabelSetRecord, check_fit, define_label_set
from service.labels.files import pack_label_set

logger = logging.getLogger(__name__)


def add_open_labels(  # noqa: PLR0913 - the last is a keyword
    draft: BundleDraft,
    opened: OpenSource,
    variants: Sequence[Graphs],
    splits: Splits | None,
    rules: CalibrationOptions,
    *,
    compact: bool = False,
) -> BundleDraft:
    """Adds all of these to a draft; the first of `variants` is what a CPU runs by default.

    `compact` stores float32 weights of the text encoder in 16 bits.
    """
    text = build_text_graph(opened.text, compact=compact)
    precision: Precision = "int8" if opened.text.in_8_bits else "fp32"
    embed = TextEmbedder(opened.text, text).embed
    head, contract = draft.card.open_head or describe_head(opened.head.config), draft.card.input
    trained = None
    if opened.unseen is not None:
        scored = score_names(opened.unseen, variants, head, contract, embed)
        head = calibrate_open(head, scored, rules)
    if splits is not None and (opened.label_sets or head.calibration):
        trained = score_names(splits.val, variants, head, contract, embed)
        head = calibrate_trained_names(head, trained)
    sets = [
        embed_label_set(
            define_label_set(calibrate_label_set(record, head, trained, rules)),
            head.embedding_space,
            embed,
        )
        for record in opened.label_sets
    ]
    draft = replace(
        draft,
        card=draft.card.model_copy(update={"open_head": head}),
        graphs={**draft.graphs, "text_encoder": {precision: text.SerializeToString()}},
        tokenizer=opened.text.tokenizer,
        label_sets={f"{embedded.name}.npz": pack_label_set(embedded) for embedded in sets},
    )
    if splits is None or not isinstance(opened.head, ZeroShotMLDecoder):
        return draft
    return add_screen(draft, opened.head, variants[0], splits, embed, compact=compact)


def score_names(
    photos: LabelledPhotos,
    variants: Sequence[Graphs],
    head: OpenHead,
    contract: InputContract,
    embed: EmbedTexts,
) -> ScoredPhotos:
    """Runs the open head on the names of photos' labels, and on photos by the first variant."""
    template = head.embedding_space.template
    embeddings = embed([write_prompt(template, name) for name in photos.label_names])
    logits = predict_logits(variants[0], photos, contract, embeddings)
    return ScoredPhotos(photos, logits, predict_blank(variants, contract, embeddings))


def calibrate_label_set(
    record: LabelSetRecord, head: OpenHead, trained: ScoredPhotos | None, rules: CalibrationOptions
) -> LabelSetRecord:
    """Adds thresholds to labels that are trained labels too, and have none yet.

    `trained` has the open head's logits of the trained labels.
    """
    if trained is None:
        return record
    calibration = record.calibration or head.trained_names or head.calibration
    thresholds = find_open_thresholds(trained, calibration, rules)
    labels = [
        label
        if label.threshold is not None or label.prompt or label.embedding
        else label.model_copy(update={"threshold": thresholds.get(label.name)})
        for label in record.labels
    ]
    own = sum(label.threshold is not None for label in labels)
    logger.info("label set %s: %d of %d labels calibrated", record.name, own, len(labels))
    return record.model_copy(update={"labels": labels})


def embed_label_set(definition: Definition, space: EmbeddingSpace, embed: EmbedTexts) -> Definition:
    """Embeds every label of a checked set, so that a service encodes no text when it starts."""
    given = dict(zip(definition.given, definition.embeddings, strict=True))
    missing = [i for i in range(len(definition.names)) if i not in given]
    prompts = definition.texts(space)
    given |= zip(missing, embed([prompts[i] for i in missing]), strict=True)
    embedded = replace(
        definition,
        given=tuple(range(len(given))),
        embeddings=np.stack([given[i] for i in range(len(given))]),
        embedding_space=space.fingerprint,
    )
    check_fit(embedded, space, encodes_text=True)
    return embedded
