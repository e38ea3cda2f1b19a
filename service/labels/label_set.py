"""The label set as requests see it: an immutable snapshot, pinned by a request until its end."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.bundle.card import Activation, Calibration, Label, OpenHead, TrainedHead
from service.engine.heads import KeyArray, LabelVectors, QueryArray
from service.labels.definition import Definition

FALLBACK_THRESHOLD = 0.5
"""Threshold where nothing else is known: on calibrated scores, more likely than not."""

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
        calibration: float64 [2, L], scale and shift of each logit; None uses logits as they are.
        own_calibration: of a set that has its own.
        own_embeddings: bool [L], whether the label came with an embedding instead of a text.
        queries: float32 [L, K], input of the open head; None for the trained labels.
        keys: float32 [L, Z], input of its screen; None for trained and candidate labels, and if
            there is no screen.
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
    calibration: NDArray[np.float64] | None
    own_calibration: Calibration | None
    own_embeddings: NDArray[np.bool_]
    source: Source
    activation: Activation
    queries: QueryArray | None
    keys: KeyArray | None
    positions: dict[str, int]

    @cached_property
    def everything(self) -> NDArray[np.intp]:
        """The positions of all labels."""
        return np.arange(len(self.names))

    @cached_property
    def scales(self) -> NDArray[np.float32] | None:
        """Scale of each logit, float32 [L]; None if no label is calibrated."""
        return None if self.calibration is None else self.calibration[0].astype(np.float32)

    @cached_property
    def shifts(self) -> NDArray[np.float32] | None:
        """Shift of each logit, float32 [L]; None if no label is calibrated."""
        return None if self.calibration is None else self.calibration[1].astype(np.float32)

    @cached_property
    def floors(self) -> NDArray[np.float32]:
        """Calibrated logits of the thresholds, float32 [L]; infinite for thresholds 0 and 1."""
        with np.errstate(divide="ignore"):
            odds = np.log(self.thresholds) - np.log1p(-self.thresholds)
        return odds.astype(np.float32)

    @property
    def read_only(self) -> bool:
        """Whether clients cannot replace or delete the set."""
        return self.origin != "store"


def make_trained_set(
    labels: Sequence[Label], head: TrainedHead | None = None, *, version: str = "1"
) -> LabelSet:
    """Returns the set of a bundle's trained labels; without a `head`, of raw sigmoid scores."""
    names = tuple(label.name for label in labels)
    fallback = None if head is None else head.threshold
    thresholds, calibrated = _fill([label.threshold for label in labels], fallback)
    of_head = None if head is None else head.calibration
    return LabelSet(
        name=TRAINED_SET,
        version=version,
        digest=None,
        origin="model",
        names=names,
        prompts=(None,) * len(names),
        thresholds=thresholds,
        calibrated=calibrated,
        calibration=_stack([label.calibration or of_head for label in labels]),
        own_calibration=None,
        own_embeddings=np.zeros(len(names), np.bool_),
        source="trained",
        activation="sigmoid" if head is None else head.activation,
        queries=None,
        keys=None,
        positions={name: position for position, name in enumerate(names)},
    )


def make_open_set(  # noqa: PLR0913 - version and origin are names
    definition: Definition,
    vectors: LabelVectors,
    head: OpenHead,
    trained_names: Collection[str] = (),
    *,
    version: str,
    origin: Origin,
) -> LabelSet:
    """Returns the set of a definition and its vectors, which requests share.

    `trained_names` are those of the bundle's trained labels, which the open head knows better, as
    `fold_name` returns them.
    """
    # The engine does not cache a writable array on a GPU: candidate labels are used once.
    for matrix in (vectors.queries, vectors.keys):
        if matrix is not None:
            matrix.flags.writeable = origin == "request"
    thresholds, calibrated = _fill(definition.thresholds, head.threshold)
    calibration = _stack(
        [
            definition.calibration or head.find_calibration(name, trained_names)
            for name in definition.names
        ]
    )
    return LabelSet(
        name=definition.name,
        version=version,
        digest=definition.digest,
        origin=origin,
        names=definition.names,
        prompts=definition.prompts,
        thresholds=thresholds,
        calibrated=calibrated,
        calibration=calibration,
        own_calibration=definition.calibration,
        own_embeddings=np.isin(np.arange(len(definition.names)), definition.given),
        source="zero_shot",
        activation=head.activation if calibration is None else "sigmoid",
        queries=vectors.queries,
        keys=vectors.keys,
        positions={name: position for position, name in enumerate(definition.names)},
    )


def _fill(
    thresholds: Sequence[float | None], fallback: float | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    rest = FALLBACK_THRESHOLD if fallback is None else fallback
    filled = [rest if value is None else value for value in thresholds]
    own = [value is not None for value in thresholds]
    return np.array(filled, np.float64), np.array(own, np.bool_)


def _stack(calibrations: Sequence[Calibration | None]) -> NDArray[np.float64] | None:
    """Returns scales and shifts, float64 [2, L]; None if no label is calibrated."""
    if not any(calibrations):
        return None
    pairs = [(1.0, 0.0) if each is None else (each.scale, each.shift) for each in calibrations]
    return np.array(pairs, np.float64).T.copy()
