"""`ml-decoder sidecars FOLDER`: tags that `bulk --xmp` wrote, and those that the user deleted."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.bundle.card import fold_name
from service.cli.console import EXIT_SOME_FAILED, write_json
from service.cli.options import path_argument, require_package
from service.errors import StartError, escape

if TYPE_CHECKING:
    from service.archive.sidecars import Change, Choose
    from service.archive.xmp import Tag

_LISTED = "{sidecars} sidecars with {tags} tags, {rejected} deleted by you\n"


def sidecars(
    *,
    folder: Annotated[Path, path_argument("FOLDER", "Folder of photos and sidecars.")],
    labels: Annotated[
        list[str] | None, typer.Argument(metavar="[LABEL]...", help="Only these tags.")
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Take the tags out, and forget which ones you deleted.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per sidecar.")] = False,
) -> None:
    """List the tags that bulk --xmp wrote to sidecars, and those that you deleted since.

    ml-decoder sidecars photos

    ml-decoder sidecars photos --remove cat
    """
    names, counts = {fold_name(label) for label in labels or ()}, Counter[str]()

    def is_chosen(name: str) -> bool:
        return not names or fold_name(name) in names

    def choose(tags: Sequence[Tag], rejected: Sequence[str]) -> tuple[list[Tag], list[str]]:
        return (
            [tag for tag in tags if not (remove and is_chosen(tag[-1]))],
            [name for name in rejected if not (remove and is_chosen(name))],
        )

    for change in _change_sidecars(folder, choose, counts, dry_run=not remove):
        tags, rejected = (tuple(filter(is_chosen, n)) for n in (change.tags, change.rejected))
        counts.update(sidecars=int(bool(tags or rejected)), tags=len(tags), rejected=len(rejected))
        counts.update(removed=len(change.removed), emptied=int(change.is_deleted))
        if as_json:
            write_json(change._replace(tags=tags, rejected=rejected)._asdict())
        elif not remove and (tags or rejected):
            parts = (", ".join(tags), f"deleted: {', '.join(rejected)}" * bool(rejected))
            sys.stdout.write(escape(f"{change.path}: {'; '.join(filter(None, parts))}") + "\n")
    if not as_json:
        total = "{removed} tags removed, {emptied} sidecars deleted\n" if remove else _LISTED
        sys.stdout.write(total.format_map(counts))
    if counts["failed"]:
        raise typer.Exit(EXIT_SOME_FAILED)


def _change_sidecars(
    folder: Path, choose: Choose, counts: Counter[str], *, dry_run: bool
) -> Iterator[Change]:
    """Yields all sidecars that may have own tags; counts and names those that failed."""
    require_package("lxml", "bulk")
    from service.archive.sidecars import LeftAlone, list_sidecars, retag

    if not folder.is_dir():
        raise StartError(f"{folder} is not a folder")
    for path, photo in list_sidecars(folder):
        try:
            yield retag(path, photo, choose, dry_run=dry_run)
        except (LeftAlone, OSError, ValueError) as error:
            sys.stderr.write(escape(f"{path}: {error}") + "\n")
            counts["failed"] += not isinstance(error, LeftAlone)
