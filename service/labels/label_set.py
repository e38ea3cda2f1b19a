"""The label set as requests see it: an immutable snapshot, pinned by a request until its end."""

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
"""Threshold of labels that were not calibrated."""

TRAINED_SET = "trained"
CANDIDATE_SET = "candidate_labels"
RESERVED_NAMES = frozenset({TRAINED_SET, CANDIDATE_SET})

Source = Literal["trained", "zero_shot"]
Origin = Literal["model", "bundle", "folder", "store", "request"]


@dataclass(frozen=True, eq=False)
class LabelSet:
    """Labels as columns, in the order of the logits.

    Attributes:
        version: changes with the content; with `origin` `store`, a number that grows.
        digest: of the definition; None for the trained labels.
        origin: `model` has the trained labels, `request` candidate labels.
        prompts: L texts that were encoded instead of the names, or None.
        thresholds: float64 [L], 0..1; the fallback for labels without their own.
        calibrated: bool [L], whether the threshold is the label's own.
        own_embeddings: bool [L], whether the label came with an embedding instead of a text.
        queries: float32 [L, K], input of the open head; None for the trained labels.
        positions: name -> index in the columns.
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
    names = tuple(label.name for label in labels)
    thresholds, calibrated = _fill([label.threshold for label in labels], FALLBACK_THRESHOLD)
    return LabelSet(
        name=TRAINED_SET,
        version=version,
        digest=None,
        origin="model",
        names=names,
        prompts=(None,) * len(names),
        thresholds=thresholds,
        calibrated=calibrated,
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
    """Returns the set of a definition and its queries, float32 [L, K], which requests share.

    `fallback` is the open head's threshold; None takes `FALLBACK_THRESHOLD`.
    """
    # The engine does not cache a writable array on a GPU: candidate labels are used once.
    queries.flags.writeable = origin == "request"
    fallback = FALLBACK_THRESHOLD if fallback is None else fallback
    thresholds, calibrated = _fill(definition.thresholds, fallback)
    return LabelSet(
        name=definition.name,
        version=version,
        digest=definition.digest,
        origin=origin,
        names=definition.names,
        prompts=definition.prompts,
        thresholds=thresholds,
        calibrated=calibrated,
        own_embeddings=np.isin(np.arange(len(definition.names)), definition.given),
        source="zero_shot",
        activation="sigmoid",
        queries=queries,
        positions={name: position for position, name in enumerate(definition.names)},
    )


def _fill(
    thresholds: Sequence[float | None], fallback: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    filled = [fallback if value is None else value for value in thresholds]
    own = [value is not None for value in thresholds]
    return np.array(filled, np.float64), np.array(own, np.bool_)
