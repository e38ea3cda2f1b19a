"""A question: what a client asks about an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Threshold = float | Literal["calibrated"]
Explain = Literal["map", "overlay"]


@dataclass(frozen=True)
class Question:
    """What a client wants to know about an image.

    Attributes:
        top_k: most labels to answer with, 1 or more; more than there are means all; None
            sets no limit.
        threshold: a score (0..1) for every label, `calibrated` for each label's own, or
            None: no threshold where `top_k` is given, else `calibrated`.
        include: names to choose from; empty means all labels.
        exclude: names never to answer with.
        label_set: names of label sets; empty means the default set, or none where there are
            candidate labels.
        candidate_labels: labels for this request alone.
        min_version: least version of the label store that the answer has to know.
        explain: whether each label comes with its map (`map`), and whether that is drawn for
            people too (`overlay`); None for neither.
    """

    top_k: int | None = None
    threshold: Threshold | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    label_set: tuple[str, ...] = ()
    candidate_labels: tuple[str, ...] = ()
    min_version: int | None = None
    explain: Explain | None = None

    def __post_init__(self) -> None:
        """Refuses values out of range, which the callers check before.

        Raises:
            ValueError: `top_k` or `threshold` is out of range.
        """
        if self.top_k is not None and self.top_k < 1:
            raise ValueError("top_k has to be 1 or more")
        if isinstance(self.threshold, float | int) and not 0.0 <= self.threshold <= 1.0:
            raise ValueError("threshold has to be between 0 and 1")
