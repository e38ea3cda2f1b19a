"""The options of `predict` and `bulk` that make a `Question`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from service.labels.question import Question

TopK = Annotated[str | None, typer.Option(metavar="INT", help="Most labels a photo.")]
Threshold = Annotated[
    str | None, typer.Option(metavar="SCORE", help="Least score, 0 to 1, or: calibrated.")
]
Include = Annotated[list[str] | None, typer.Option(help="Only this; repeatable.")]
Exclude = Annotated[list[str] | None, typer.Option(help="Never this; repeatable.")]
LabelSets = Annotated[list[str] | None, typer.Option(help="From this set; repeatable.")]
CandidateLabels = Annotated[
    list[str] | None, typer.Option(help="A label for this call alone; repeatable.")
]


def make_question(**asked: str | list[str] | None) -> Question:
    """Returns the question that options ask for.

    Args:
        **asked: fields of `Question`; None and an empty list are not given.

    Raises:
        InvalidParameters: a value is of the wrong type or out of range.
    """
    from service.labels.question import check_question

    given = {name: value for name, value in asked.items() if value not in (None, [])}
    return check_question(given, "command line")
