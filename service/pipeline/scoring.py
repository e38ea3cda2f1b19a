"""Turns logits into labels, best first, with scores, thresholds and flags."""

from collections.abc import Iterable, Sequence
from itertools import compress, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.bundle.card import Activation
from service.engine.heads import ScreenedLogits
from service.labels.label_set import LabelSet
from service.labels.whitening import Vector
from service.pipeline.found import choose_best, keep_least
from service.pipeline.selection import SelectedLabels, Selection

# float64 overflows at exp(710).
_MAX_EXPONENT = 700.0

Parents = tuple[str, ...] | None


class ScoredLabel(NamedTuple):
    """One label of an answer."""

    label: str
    score: float  # 0..1
    threshold: float  # 0..1: the question's number, else the label's own, else its set's fallback
    found: bool  # whether it would answer the question without `top_k` and `min_labels`
    source: str
    calibrated: bool  # whether `threshold` is the label's own
    category: str | None = None
    translation: str | None = None
    parents: tuple[str, ...] | None = None  # nearest first
    parent_translations: tuple[str, ...] | None = None


def compute_scores(
    logits: NDArray[np.floating],
    activation: Activation,
    calibration: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Turns logits [..., N] into scores 0..1, without overflow at any finite logit.

    `calibration` [2, N] has the scale and shift of each logit, for a sigmoid.
    """
    if activation == "softmax":
        values = logits.astype(np.float64)
        weights: NDArray[np.float64] = np.exp(values - values.max(axis=-1, keepdims=True))
        total: NDArray[np.float64] = weights.sum(axis=-1, keepdims=True)
        return weights / total
    # In place: for small arrays, overhead outweighs arithmetic.
    scores: NDArray[np.float64] = np.negative(logits, dtype=np.float64)
    if calibration is not None:
        scores *= calibration[0]
        scores -= calibration[1]
    np.minimum(scores, _MAX_EXPONENT, out=scores)
    np.exp(scores, out=scores)
    np.add(scores, 1.0, out=scores)
    np.reciprocal(scores, out=scores)
    return scores


def score_labels(
    logits: Sequence[NDArray[np.floating] | ScreenedLogits],
    selection: Selection,
    embedding: Vector | None = None,
) -> tuple[ScoredLabel, ...]:
    """Scores one image's logits and picks the labels that answer the question.

    `logits` has an array for each part of the selection: [L] for its chosen labels or [N] for its
    whole set, as softmax needs, or those that the screened head kept. `embedding` [D] is the
    photo's, if the selection embeds. The best score is first; equal scores keep the order of sets
    and labels.
    """
    question = selection.question
    answer = [
        label
        for values, part in zip(logits, selection.parts, strict=True)
        for label in _score_part(values, part, embedding, selection)
    ]
    # Each part is sorted already; the sort is stable. NaN is last.
    if len(selection.parts) > 1:
        answer.sort(key=lambda label: -label.score if label.score >= 0 else 1.0)
    if question.min_labels is not None:
        kept = keep_least([label.found for label in answer], question.min_labels)
        return tuple(compress(answer, kept))
    return tuple(answer[: question.top_k])


def _score_part(
    logits: NDArray[np.floating] | ScreenedLogits,
    part: SelectedLabels,
    embedding: Vector | None,
    selection: Selection,
) -> list[ScoredLabel]:
    labels, chosen, question = part.labels, part.chosen, selection.question
    if isinstance(logits, ScreenedLogits):
        counts = np.isin(logits.positions, chosen, assume_unique=True)
        chosen, logits = logits.positions[counts], logits.logits[counts]
    scores = _score_logits(logits, labels, chosen, embedding)
    best, found = choose_best(question, part.rule, labels, chosen, scores)
    positions = chosen[best]
    scores = scores[best if len(scores) == len(chosen) else positions]
    if isinstance(threshold := part.rule.threshold, float | int):
        thresholds, known = [float(threshold)] * len(best), [False] * len(best)
    else:
        thresholds = labels.thresholds[positions].tolist()
        known = labels.calibrated[positions].tolist()
    sources: Iterable[str] = repeat(labels.source.name)
    if labels.learnt is not None:
        sources = labels.learnt.name_sources(positions, labels.source.name)
    names = [labels.names[position] for position in positions.tolist()]
    rows = zip(
        *(names, scores.tolist(), thresholds, found.tolist(), sources, known),
        map(labels.categories.get, names),
        *_describe(labels, names, selection),
        strict=False,
    )
    return list(map(ScoredLabel._make, rows))


def _describe(
    labels: LabelSet, names: Sequence[str], selection: Selection
) -> tuple[Iterable[str | None], Iterable[Parents], Iterable[Parents]]:
    """Returns translations, parents and their translations, as the question asks for them."""
    lang, own, nothing = selection.lang, labels.words, repeat(None)
    translations: Iterable[str | None] = nothing
    if lang is not None:
        translations = (labels.dictionary.translate(name, lang) for name in names)
    if not selection.question.parents:
        return translations, nothing, nothing
    parents = [own[name].parents or None if name in own else None for name in names]
    if lang is None:
        return translations, parents, nothing
    translate = selection.words.translate
    return translations, parents, (some and tuple(map(translate, some)) for some in parents)


def _score_logits(
    logits: NDArray[np.floating],
    labels: LabelSet,
    chosen: NDArray[np.intp],
    embedding: Vector | None,
) -> NDArray[np.float64]:
    """Returns the scores of logits [L], or of those of the chosen labels alone."""
    calibration, is_whole = labels.calibration, len(logits) == len(labels.names)
    if calibration is not None and not is_whole:
        calibration = calibration[:, chosen]
    if not labels.embeds:
        return compute_scores(logits, labels.activation, calibration)
    values = logits.astype(np.float64)
    if calibration is not None:
        values = values * calibration[0] + calibration[1]
    added = np.full(len(labels.names), labels.source.untaught_logit)
    if (learnt := labels.learnt) is not None:
        assert embedding is not None
        is_few = 2 * len(chosen) <= len(learnt.positions)
        rows = np.isin(learnt.positions, chosen) if is_few else slice(None)
        added[learnt.positions[rows]] = learnt.vectors[rows] @ embedding + learnt.shifts[rows]
    return compute_scores(values + (added if is_whole else added[chosen]), labels.activation)
