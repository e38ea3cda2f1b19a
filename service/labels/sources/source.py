"""The ways to know a label.

A *source* knows all labels of a set: by the trained head's columns, by texts, or not at all. A
*lesson* is what one label has learnt from photos besides; the table of lessons is in `learnt`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from service.bundle.card import Record
from service.engine.heads import TRAINED_HEAD, Head, LabelVectors, SomeQueries, ZeroHead
from service.fields import ThresholdName
from service.labels.whitening import Vector, Whitening

if TYPE_CHECKING:  # it imports ONNX Runtime
    from service.engine.session_set import MapGraphs

Maps = NDArray[np.float32]
Memory = NDArray[np.float32]  # [S, D]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Source(ABC):
    """How the labels of a set are known, before they learn from photos."""

    name: ClassVar[str]  # in answers
    measured_on: ClassVar[str] = ""  # options of `export` that measure its thresholds by purpose
    untaught_logit: ClassVar[float] = 0.0  # added to labels without a lesson
    vectors: LabelVectors | None = None  # queries and keys for the open head, if it takes them

    @abstractmethod
    def choose_head(self, chosen: NDArray[np.intp] | None) -> Head:
        """Returns what the engine runs for the chosen labels, None for all of the set."""

    @abstractmethod
    def needs_tokens(self, *, two_towers: bool) -> bool:
        """Returns whether its logits need all tokens of a photo, not just its embedding."""

    @abstractmethod
    def can_draw(self, graphs: "MapGraphs") -> bool:
        """Returns whether its labels have maps."""

    @abstractmethod
    def draw(self, graphs: "MapGraphs", memory: Memory, rows: NDArray[np.intp]) -> Maps | None:
        """Returns maps [R, rows, columns] of some labels; None if lessons alone have them."""


class Trained(Source):
    """All labels of a bundle that were trained, in the order of the head's columns."""

    name = "trained"
    measured_on = "--photos FOLDER"

    def choose_head(self, chosen: NDArray[np.intp] | None) -> Head:
        return TRAINED_HEAD

    def needs_tokens(self, *, two_towers: bool) -> bool:
        return True

    def can_draw(self, graphs: "MapGraphs") -> bool:
        return graphs.trained is not None

    def draw(self, graphs: "MapGraphs", memory: Memory, rows: NDArray[np.intp]) -> Maps:
        return graphs.draw(memory, rows.astype(np.int64))


class Texts(Source):
    """Queries of the open head [L, K], made of texts or embeddings, and keys for the screen."""

    name = "zero_shot"
    measured_on = "--open-photos FOLDER"
    vectors: LabelVectors

    def __init__(self, vectors: LabelVectors) -> None:
        self.vectors = vectors

    def choose_head(self, chosen: NDArray[np.intp] | None) -> Head:
        """Returns the queries: a request for less than half of a set copies its rows.

        Others share the matrix, and with it a run.
        """
        queries = self.vectors.queries
        if chosen is None or 2 * len(chosen) >= len(queries):
            return queries
        return SomeQueries(queries, chosen)

    def needs_tokens(self, *, two_towers: bool) -> bool:
        """Returns False for two towers, whose embeddings share a space."""
        return not two_towers

    def can_draw(self, graphs: "MapGraphs") -> bool:
        return graphs.open is not None

    def draw(self, graphs: "MapGraphs", memory: Memory, rows: NDArray[np.intp]) -> Maps:
        return graphs.draw(memory, self.vectors.queries[rows])


class Untold(Source):
    """`count` labels that photos alone tell, as in bundles without an open head.

    Those that have learnt nothing have the score 0.
    """

    name = "examples"
    untaught_logit = -np.inf

    def __init__(self, count: int) -> None:
        self.count = count

    def choose_head(self, chosen: NDArray[np.intp] | None) -> Head:
        return ZeroHead(self.count)

    def needs_tokens(self, *, two_towers: bool) -> bool:
        return False

    def can_draw(self, graphs: "MapGraphs") -> bool:
        return True  # lessons have maps of their own

    def draw(self, graphs: "MapGraphs", memory: Memory, rows: NDArray[np.intp]) -> None:
        return None


class Point(Record):
    """A threshold; precision and recall are null if the label's photos did not choose it."""

    threshold: Share
    precision: Share | None = None
    recall: Share | None = None

    @property
    def is_own(self) -> bool:
        """Whether the label's photos chose it."""
        return self.precision is not None


@dataclass(frozen=True)
class Taught:
    """What a lesson does to its label: `v . f + b` is added to the logit."""

    lesson: "Lesson"
    vector: Vector  # v, [D]
    shift: float  # b
    described: Mapping[str, Any]  # as JSON values
    is_drawn: bool = True  # whether the tokens' parts of v . f show where the label is
    # Scale and shift of the text's logit as the open head gives it, instead of its calibration.
    pair: tuple[float, float] | None = None
    # `calibrated` is for a label without a threshold of its own.
    points: Mapping[ThresholdName, Point] = field(default_factory=dict)


class Lesson(Protocol):
    """What a label has learnt from photos with one encoder."""

    kind: ClassVar[str]  # in answers, files and the label store

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Reads what `to_bytes` returned. Raises `InvalidLabelSet` if it is damaged."""

    def to_bytes(self) -> bytes:
        """Returns the lesson as the label store and files have it."""

    def teach(
        self, whitening: Whitening, query: Vector | None, *, has_logit: bool
    ) -> Taught | None:
        """Returns its effect on a label, None if it was learnt next to another text.

        `query` [K] is that of the label's text, if it has one; with `has_logit` the label has a
        logit of its text or of an earlier lesson. Raises `InvalidLabelSet` if the lesson is of
        another width than the model's embeddings.
        """
