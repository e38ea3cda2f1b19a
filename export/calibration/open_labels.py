"""An open head's text encoder, calibration, thresholds and ready label sets.

They are computed with the served graphs and text embeddings: 8 bits move scores a little.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from export.accuracy import ScoredPhotos, score_photos
from export.calibration.heads import (
    CalibrationOptions,
    calibrate_open,
    calibrate_trained_names,
    find_open_thresholds,
)
from export.calibration.screen import add_screen
from export.graphs.graph import Graphs
from export.graphs.text import EmbedTexts, build_text_graph, embed_names, make_embedder
from export.sources.labelled_photos import LabelledPhotos, Splits
from export.sources.open import OpenSource, describe_head
from models.heads.zero_shot import ZeroShotMLDecoder
from service.bundle.card import Calibration, EmbeddingSpace, OpenHead, Precision
from service.bundle.writer import BundleDraft
from service.calibration import move_threshold
from service.labels.definition import Definition
from service.labels.files import pack_label_set

# Largest difference of a stored embedding, in 16 bits, from that of the label's name.
_SAME_EMBEDDING = 2e-3
logger = logging.getLogger(__name__)


def add_open_labels(  # noqa: PLR0913 - the parts of an export
    draft: BundleDraft,
    opened: OpenSource,
    variants: Sequence[Graphs],
    splits: Splits | None,
    options: CalibrationOptions,
    *,
    compact: bool,
) -> BundleDraft:
    """Adds all of these to a draft; the first of `variants` is what a CPU runs by default."""
    text = build_text_graph(opened.text, compact=compact)
    precision: Precision = "int8" if opened.text.in_8_bits else "fp32"
    embed = make_embedder(opened.text, text)
    head = draft.card.open_head or describe_head(opened.head.config)
    uses_names = opened.label_sets or opened.unseen is not None
    head, trained = calibrate_open_head(
        head,
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
        label_sets=calibrate_sets(opened.label_sets, head, trained, embed, options),
    )
    if splits is None or not isinstance(opened.head, ZeroShotMLDecoder):
        return draft
    return add_screen(draft, opened.head, variants[0], splits, embed, compact=compact)


def calibrate_open_head(  # noqa: PLR0913 - the parts of an export
    head: OpenHead,
    unseen: LabelledPhotos | None,
    val: LabelledPhotos | None,
    variants: Sequence[Graphs],
    *,
    embed: EmbedTexts,
    options: CalibrationOptions,
) -> tuple[OpenHead, ScoredPhotos | None]:
    """Calibrates on photos of other labels, then of trained ones; returns their logits too."""
    template = head.embedding_space.template

    def score(photos: LabelledPhotos) -> ScoredPhotos:
        return score_photos(photos, variants, embed_names(photos.label_names, template, embed))

    if unseen is not None:
        head = calibrate_open(head, score(unseen), options)
    if val is None:
        return head, None
    trained = score(val)
    return calibrate_trained_names(head, trained), trained


def calibrate_sets(  # noqa: PLR0913 - the parts of a bundle
    definitions: Iterable[Definition],
    head: OpenHead,
    trained: ScoredPhotos | None,
    embed: EmbedTexts,
    options: CalibrationOptions,
    *,
    before: OpenHead | None = None,
    trained_names: Collection[str] = (),
) -> dict[str, bytes]:
    """Returns label sets by file name, with all embeddings and thresholds on the head's scores.

    Thresholds of a file are kept. With the head of a bundle `before` it was calibrated again,
    those are moved to the new scores, and measured ones replace them; `trained_names` are as
    `fold_name` returns them. `trained` has the open head's logits of trained labels.
    """
    raw, sets = Calibration(scale=1.0, shift=0.0), {}
    for definition in definitions:
        embedded = embed_label_set(definition, head.embedding_space, embed)
        pairs = zip(embedded.names, embedded.thresholds, strict=True)
        given = {name: threshold for name, threshold in pairs if threshold is not None}
        measured = _find_thresholds_by_name(embedded, head, trained, options, embed)
        if before is not None and definition.calibration is None:
            for name, threshold in given.items():
                fits = (one.find_calibration(name, trained_names) or raw for one in (before, head))
                given[name] = move_threshold(threshold, *fits)
        by_name: dict[str, float | None] = {**given, **measured}
        if before is None:
            by_name |= given
        thresholds = tuple(by_name.get(name) for name in embedded.names)
        if trained is not None:
            count = sum(threshold is not None for threshold in thresholds)
            logger.info(
                "label set %s: %d of %d labels calibrated",
                *(definition.name, count, len(thresholds)),
            )
        sets[f"{definition.name}.npz"] = pack_label_set(replace(embedded, thresholds=thresholds))
    return sets


def _find_thresholds_by_name(
    embedded: Definition,
    head: OpenHead,
    trained: ScoredPhotos | None,
    options: CalibrationOptions,
    embed: EmbedTexts,
) -> dict[str, float | None]:
    """Returns thresholds of labels that have the name and embedding of a trained label.

    None for those without enough photos; without labels that learnt from photos, whose scores are
    others.
    """
    if trained is None:
        return {}
    calibration = embedded.calibration or head.trained_names or head.calibration
    thresholds = find_open_thresholds(trained, calibration, options)
    names = trained.photos.label_names
    trained_embeddings = dict(
        zip(names, embed_names(names, head.embedding_space.template, embed), strict=True)
    )
    return {
        name: thresholds.get(name)
        for name, embedding in zip(embedded.names, embedded.embeddings, strict=True)
        if name in trained_embeddings.keys() - embedded.examples.keys()
        and np.allclose(embedding, trained_embeddings[name], atol=_SAME_EMBEDDING)
    }


def embed_label_set(definition: Definition, space: EmbeddingSpace, embed: EmbedTexts) -> Definition:
    """Embeds every label of a checked set, so that a service encodes no text when it starts."""
    given = dict(zip(definition.given, definition.embeddings, strict=True))
    missing = [i for i in range(len(definition.names)) if i not in given]
    prompts = definition.texts(space)
    given |= zip(missing, embed([prompts[i] for i in missing]), strict=True)
    return replace(
        definition,
        given=tuple(range(len(given))),
        embeddings=np.stack([given[i] for i in range(len(given))]),
        embedding_space=space.fingerprint,
    )
