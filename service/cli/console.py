"""Output that commands share: JSON and tables on stdout, progress and failures on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from service.errors import escape

if TYPE_CHECKING:  # it imports the pipeline, and `--help` needs none
    from service.cli.local_pipeline import PhotoResult

EXIT_SOME_FAILED = 1


def write_json(record: Mapping[str, Any]) -> None:
    """Writes one JSON object on one line."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def show_pairs(values: Mapping[str, str], justify: Literal["left", "right"] = "left") -> None:
    """Shows a table of two columns without a head."""
    table = Table(show_header=False)
    for name, value in values.items():
        # `Text`, here and elsewhere, because rich reads markup in plain strings.
        table.add_row(Text(escape(name)), Text(escape(value), justify=justify))
    Console().print(table)


def show_failure(photo: PhotoResult) -> None:
    """Shows on stderr the reason why a photo has no labels."""
    failure = Text.assemble((escape(str(photo.path)), "bold"), f": {photo.failure}")
    Console(stderr=True).print(failure, soft_wrap=True)


@contextmanager
def show_progress(*, results_on_stdout: bool) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar on stderr; yields a function of photos done and in total."""
    console = Console(stderr=True)
    speed_column = TextColumn("{task.fields[speed]}")
    columns = (BarColumn(), MofNCompleteColumn(), speed_column, TimeRemainingColumn())
    hidden = not console.is_terminal or (results_on_stdout and sys.stdout.isatty())
    with Progress(*columns, console=console, disable=hidden, transient=results_on_stdout) as bar:
        task = bar.add_task("", total=None, speed="")

        def report(done: int, total: int) -> None:
            speed = bar.tasks[0].speed
            text = "" if speed is None else f"{speed:.0f} photos/s"
            bar.update(task, completed=done, total=total, speed=text)

        yield report
