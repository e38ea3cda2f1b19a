"""A label set as requests see it: an immutable snapshot that a request pins to its end.

In: the trained labels of a bundle, or a definition with its queries. Out: a `LabelSet`: columns
in the order of the logits. Replacing a set makes a new snapshot; who holds the old one keeps it.
Next: `selection.py`, which chooses from sets what a request asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.bundle.card import Activation, Label
from service.engine.heads import QueryArray
from service.labels.definition import Definition

FALLBACK_THRESHOLD = 0.5
"""Score at and above which a label is predicted that nobody calibrated."""

TRAINED_SET = "trained"
CANDIDATE_SET = "candidate_labels"
RESERVED_NAMES = frozenset({TRAINED_SET, CANDIDATE_SET})

Source = Literal["trained", "zero_shot"]
Origin = Literal["model", "bundle", "folder", "store", "request"]


@dataclass(frozen=True, eq=False)
class LabelSet:
    """Labels as columns, in the order of the logits.

    Attributes:
        name: name of the set.
        version: changes with the content; a number that grows where `origin` is `store`.
        digest: hash of the definition, sha256 in hex; None for the trained labels, which are part
            of the model.
        origin: where the set is from: `model` (the trained labels), `bundle`, `folder`,
            `store`, or `request` (candidate labels).
        names: L names, each once.
        prompts: L texts that were encoded instead of the names; None where there was none.
        thresholds: float64 [L], 0..1, the fallback where a label has none of its own.
        calibrated: bool [L], whether the threshold is the label's own.
        own_embeddings: bool [L], whether the label came with an embedding, and not with a text.
        source: how the model knows the labels.
        activation: turns their logits into scores.
        queries: float32 [L, K], what the open head takes; None for the trained labels.
        positions: name -> its index in the columns.
    """

    name: str
    version: str
    digest: str | None
    origin: Origin
    names: tuple[str, ...]
    prompts: tuple[str | None, ...]
    thresholds: NDArray[np.float64]
    calibrated: NDArray[np.bool_]
    own_embeddings: NDArray[np.bool_]
    source: Source
    activation: Activation
    queries: QueryArray | None
    positions: dict[str, int]

    @cached_property
    def everything(self) -> NDArray[np.intp]:
        """The positions of all labels."""
        return np.arange(len(self.names))

    @property
    def read_only(self) -> bool:
        """Whether clients cannot replace or delete the set."""
        return self.origin != "store"


def make_trained_set(
    labels: Sequence[Label], *, version: str = "1", activation: Activation = "sigmoid"
) -> LabelSet:
    """Returns the set of a bundle's trained labels."""
    thresholds = [label.threshold for label in labels]
    names = tuple(label.name for label in labels)
    return LabelSet(
        name=TRAINED_SET,
        version=version,
        digest=None,
        origin="model",
        names=names,
        prompts=(None,) * len(names),
        thresholds=_fill(thresholds, FALLBACK_THRESHOLD),
        calibrated=_tell_own(thresholds),
        own_embeddings=np.zeros(len(names), np.bool_),
        source="trained",
        activation=activation,
        queries=None,
        positions={name: position for position, name in enumerate(names)},
    )


def make_open_set(
    definition: Definition,
    queries: QueryArray,
    *,
    version: str,
    origin: Origin,
    fallback: float | None,
) -> LabelSet:
    """Returns the set of a definition whose labels are encoded.

    Args:
        definition: what its author gave.
        queries: float32 [L, K].
        version: of the set.
        origin: where it is from.
        fallback: the open head's own threshold; None takes `FALLBACK_THRESHOLD`.
    """
    # Requests of a set share this array. The engine does not cache a writable one on a GPU, which
    # is right for candidate labels: they are used once.
    queries.flags.writeable = origin == "request"
    return LabelSet(
        name=definition.name,
        version=version,
        digest=definition.digest,
        origin=origin,
        names=definition.names,
        prompts=definition.prompts,
        thresholds=_fill(
            definition.thresholds, FALLBACK_THRESHOLD if fallback is None else fallback
        ),
        calibrated=_tell_own(definition.thresholds),
        own_embeddings=np.isin(np.arange(len(definition.names)), definition.given),
        source="zero_shot",
        activation="sigmoid",
        queries=queries,
        positions={name: position for position, name in enumerate(definition.names)},
    )


def _fill(thresholds: Sequence[float | None], fallback: float) -> NDArray[np.float64]:
    return np.array([fallback if value is None else value for value in thresholds], np.float64)


def _tell_own(thresholds: Sequence[float | None]) -> NDArray[np.bool_]:
    return np.array([value is not None for value in thresholds], np.bool_)
