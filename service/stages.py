"""When each stage of a request ran: one set of times for metrics and traces."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

StageName = Literal["decode", "queue", "encode", "head"]


class Stage(NamedTuple):
    """One stage of a photo, on `time.perf_counter`; `encode` and `head` are the whole batch's."""

    name: StageName
    started: float
    ended: float

    @property
    def seconds(self) -> float:
        """The stage's duration."""
        return self.ended - self.started


class Observer(Protocol):
    """Gets batches and predictions; its methods must be quick and must not raise."""

    def on_batch(self, size: int, seconds: float) -> None:
        """Called in a worker's thread with the size and duration of a batch."""

    def on_prediction(self, stages: Sequence[Stage], batch_size: int) -> None:
        """Called in the request's task with the stages of a photo that has been labelled."""
