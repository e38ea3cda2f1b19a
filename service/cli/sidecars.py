"""`ml-decoder sidecars FOLDER`: tags that `bulk --xmp` wrote, and those that the user deleted."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from service.bundle.card import fold_name
from service.cli.console import EXIT_SOME_FAILED
from service.cli.options import path_argument, require_extra
from service.errors import escape

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
) -> None:
    """List the tags that bulk --xmp wrote to sidecars, and those that you deleted since.

    ml-decoder sidecars photos

    ml-decoder sidecars photos --remove cat
    """
    require_extra("bulk", "lxml")
    from service.archive.sidecars import LeftAlone, list_sidecars, retag

    names, counts = {fold_name(label) for label in labels or ()}, Counter[str]()

    def is_chosen(name: str) -> bool:
        return not names or fold_name(name) in names

    is_removed = is_chosen if remove else lambda _: False
    for path, photo in list_sidecars(folder):
        try:
            change = retag(path, photo, is_removed=is_removed, dry_run=not remove)
        except (LeftAlone, OSError, ValueError) as error:
            sys.stderr.write(escape(f"{path}: {error}") + "\n")
            counts["failed"] += not isinstance(error, LeftAlone)
            continue
        tags, rejected = (tuple(filter(is_chosen, n)) for n in (change.tags, change.rejected))
        counts.update(sidecars=int(bool(tags or rejected)), tags=len(tags), rejected=len(rejected))
        counts.update(removed=len(change.removed), emptied=int(change.is_deleted))
        if (tags or rejected) and not remove:
            parts = [", ".join(tags), f"deleted: {', '.join(rejected)}" * bool(rejected)]
            sys.stdout.write(escape(f"{path}: {'; '.join(filter(None, parts))}") + "\n")
    total = "{removed} tags removed, {emptied} sidecars deleted\n" if remove else _LISTED
    sys.stdout.write(total.format_map(counts))
    if counts["failed"]:
        raise typer.Exit(EXIT_SOME_FAILED)
