"""Which labels are found, and which of the others are in an answer: decided here and nowhere else.

A label is found if it would answer the same question without `top_k` and `min_labels`. A parameter
that changes what is found is added to `make_rule`, as a threshold or as a number of labels. Scoring
and the screened head follow from the rule, and all readers of answers from their flag `found`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.labels.label_set import MOST_RANKED, LabelSet
from service.question import Question, Threshold

Scores = NDArray[np.float64]
Positions = NDArray[np.intp]

# Sorting up to this many scores is as fast as partitioning them first.
_MAX_SORTED = 500
# The screen compares logits less the threshold's in float32: a threshold of 1 would be infinite.
_MAX_FLOOR = 1 - 1e-9


@dataclass(frozen=True)
class FoundRule:
    """Which labels of one set are found: those that reach `threshold`, and of these the best."""

    threshold: Threshold | None  # a number; a word: each label's own; None: any score
    most: int | None = None  # found labels of the set; None: all

    def mark(self, labels: LabelSet, chosen: Positions, scores: Scores) -> NDArray[np.bool_]:
        """Returns which of the chosen labels are found, bool [C].

        `scores` are of the whole set, [L], or of the chosen labels, [C]. The best rating is of all
        ratings, so that a question about some of them does not get a lower one.
        """
        values, floors = _pick(scores, chosen), labels.thresholds
        if isinstance(self.threshold, str):
            if labels.ratings is not None:
                floors = labels.thresholds.copy()
                floors[labels.ratings] = np.inf
                floors[labels.ratings[order_best(scores[labels.ratings], 1)]] = -np.inf
            found = values >= _pick(floors, chosen)
        elif self.threshold is None:
            found = np.ones(len(values), np.bool_)
        else:
            found = values >= self.threshold
        if self.most is not None:
            (reaching,) = found.nonzero()
            found = np.zeros(len(values), np.bool_)
            found[reaching[order_best(values[reaching], self.most)]] = True
        return found


def make_rule(question: Question, labels: LabelSet, *, is_alone: bool) -> FoundRule:
    """Returns the rule of a question for one of its sets; `is_alone` if there is no other.

    `labels` has the thresholds of the question's purpose.
    """
    threshold = question.threshold
    if threshold is None and labels.activation == "softmax" and is_alone and not labels.ranked:
        return FoundRule(None, 1)  # the scores compete: the best label is the answer
    threshold = "calibrated" if threshold is None else threshold
    is_ranked = labels.ranked and threshold == "calibrated"
    return FoundRule(threshold, MOST_RANKED if is_ranked else None)


def find_needed(
    question: Question, rule: FoundRule, labels: LabelSet, chosen: Positions
) -> tuple[Threshold | None, int]:
    """Returns a threshold and a number: an answer needs all labels that reach it, and the best."""
    if question.top_k is not None:
        # Whether one of the best is found does not depend on others.
        return question.threshold, 0 if question.threshold is not None else question.top_k
    least = question.min_labels or 0
    if rule.most is not None:
        return None, max(rule.most, least)
    if not least or rule.threshold is None:
        return rule.threshold, least
    # One threshold for all: by distances to their own, the best would be others than by scores.
    own = isinstance(rule.threshold, str)
    lowest = float(labels.thresholds[chosen].min()) if own else rule.threshold
    return min(lowest, _MAX_FLOOR), least


def choose_best(
    question: Question, rule: FoundRule, labels: LabelSet, chosen: Positions, scores: Scores
) -> tuple[Positions, NDArray[np.bool_]]:
    """Returns indices into `chosen` of labels that may be in the answer, best first, and flags.

    `scores` are of the whole set, [L], or of the chosen labels, [C]. With `min_labels`, see
    `keep_least`.
    """
    found, values = rule.mark(labels, chosen, scores), _pick(scores, chosen)
    limit = question.top_k
    if limit is None:
        kept = found
        if question.min_labels is not None:
            kept = found.copy()
            kept[order_best(values, question.min_labels)] = True
    elif question.threshold is None:
        best = order_best(values, limit)
        return best, found[best]
    elif isinstance(question.threshold, str):
        kept = values >= _pick(labels.thresholds, chosen)
    else:
        kept = values >= question.threshold
    (among,) = kept.nonzero()
    best = among[order_best(values[among], limit)]
    return best, found[best]


def keep_least(found: Sequence[bool], least: int) -> list[bool]:
    """Returns which labels of all sets, best first, make `least` labels with all found ones."""
    room = least - sum(found)
    return [is_found or (room := room - 1) >= 0 for is_found in found]


def order_best(scores: Scores, limit: int | None) -> Positions:
    """Returns the positions of the best scores, at most `limit`; equal ones keep their order."""
    keys = -scores  # NaN is last in every sort
    if limit is None or len(keys) <= max(limit, _MAX_SORTED):
        return keys.argsort(kind="stable")[:limit]
    last = np.partition(keys, limit - 1)[limit - 1]
    # Scores equal to the last one are sorted too, so that the first of them is in the answer.
    (among,) = (~(keys > last)).nonzero()
    best: Positions = among[keys[among].argsort(kind="stable")[:limit]]
    return best


def _pick(values: Scores, chosen: Positions) -> Scores:
    """Returns the chosen ones of values [L]; those of the chosen labels, [C], as they are."""
    return values if len(values) == len(chosen) else values[chosen]
