"""`ml-decoder sidecars FOLDER`: tags that `bulk --xmp` wrote, and those that the user deleted."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from service.bundle.card import fold_name
from service.cli.console import EXIT_SOME_FAILED, write_json
from service.cli.options import path_argument, require_package
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
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per sidecar.")] = False,
) -> None:
    """List the tags that bulk --xmp wrote to sidecars, and those that you deleted since.

    ml-decoder sidecars photos

    ml-decoder sidecars photos --remove cat
    """
    require_package("lxml", "bulk")
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
        if as_json:
            write_json(change._replace(tags=tags, rejected=rejected)._asdict())
        elif not remove:
            _show(path, tags, rejected)
    if not as_json:
        total = "{removed} tags removed, {emptied} sidecars deleted\n" if remove else _LISTED
        sys.stdout.write(total.format_map(counts))
    if counts["failed"]:
        raise typer.Exit(EXIT_SOME_FAILED)


def _show(path: Path, tags: Sequence[str], rejected: Sequence[str]) -> None:
    parts = [", ".join(tags)] * bool(tags) + [f"deleted: {', '.join(rejected)}"] * bool(rejected)
    if parts:
        sys.stdout.write(escape(f"{path}: {'; '.join(parts)}") + "\n")
