"""`ml-decoder sidecars FOLDER`: tags that `bulk --xmp` wrote, and those that the user deleted."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.bundle.card import fold_name
from service.cli.console import EXIT_SOME_FAILED, write_json
from service.cli.options import path_argument, require_package
from service.errors import StartError

if TYPE_CHECKING:
    from service.archive.sidecars import Change
    from service.archive.xmp import Tag


@dataclass(frozen=True)
class _Edit:
    names: frozenset[str]  # folded; empty for all
    remove: bool
    reject: bool
    allow: bool

    def chooses(self, name: str) -> bool:
        return not self.names or fold_name(name) in self.names

    def __call__(self, tags: Sequence[Tag], rejected: Sequence[str]) -> tuple[list[Tag], list[str]]:
        out = [tag for tag in tags if self.chooses(tag[-1])] * (self.remove or self.reject)
        again = [name for name in rejected if self.chooses(name)] * self.allow
        names = [name for name in rejected if name not in again]
        return [tag for tag in tags if tag not in out], names + [t[-1] for t in out] * self.reject


def sidecars(  # noqa: PLR0913 - a command has a parameter for each flag
    *,
    folder: Annotated[Path, path_argument("FOLDER", "Folder of photos and sidecars.")],
    labels: Annotated[
        list[str] | None, typer.Argument(metavar="[LABEL]...", help="Only these tags.")
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Take the tags out; a later run may write them again.")
    ] = False,
    reject: Annotated[
        bool, typer.Option("--reject", help="Take the tags out for good, as if deleted by hand.")
    ] = False,
    allow: Annotated[
        bool, typer.Option("--allow", help="Let a later run write deleted tags again.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per sidecar.")] = False,
) -> None:
    """List the tags that bulk --xmp wrote to sidecars, and those that you deleted since.

    ml-decoder sidecars photos

    ml-decoder sidecars photos --remove cat
    """
    if not folder.is_dir():
        raise StartError(f"{folder} is not a folder")
    if remove + reject + allow > 1:
        raise StartError("give one of --remove, --reject and --allow")
    edit = _Edit(frozenset(map(fold_name, labels or ())), remove, reject, allow)
    is_list = not (remove or reject or allow)
    counts = Counter[str]()
    for change in _edit_sidecars(folder, edit, counts, dry_run=is_list):
        counts.update(sidecars=int(bool(change.tags or change.rejected)), tags=len(change.tags))
        counts.update(rejected=len(change.rejected), emptied=int(change.is_deleted))
        counts.update(removed=len(change.removed))
        if as_json:
            write_json(describe_change(change))
        elif is_list:
            deleted = f"deleted: {', '.join(change.rejected)}" if change.rejected else ""
            parts = filter(None, (", ".join(change.tags), deleted))
            sys.stdout.write(f"{change.path}: {'; '.join(parts)}\n")
    if not as_json:
        done = "" if is_list else "{removed} tags removed, {emptied} sidecars deleted; now "
        total = f"{done}{{sidecars}} sidecars with {{tags}} tags, {{rejected}} deleted by you\n"
        sys.stdout.write(total.format_map(counts))
    if counts["failed"]:
        raise typer.Exit(EXIT_SOME_FAILED)


def _edit_sidecars(
    folder: Path, edit: _Edit, counts: Counter[str], *, dry_run: bool
) -> Iterator[Change]:
    """Yields the sidecars with chosen tags, and those that changed; counts and names failures."""
    require_package("lxml", "bulk")
    from service.archive.sidecars import LeftAlone, list_sidecars, retag

    for path, photo in list_sidecars(folder):
        try:
            change = retag(path, photo, edit, dry_run=dry_run)
        except (LeftAlone, OSError, ValueError) as error:
            sys.stderr.write(f"{path}: {error}\n")
            counts["failed"] += 1
            continue
        tags, rejected = (tuple(filter(edit.chooses, n)) for n in (change.tags, change.rejected))
        if tags or rejected or (change.is_changed and not dry_run):
            yield change._replace(tags=tags, rejected=rejected)


def describe_change(change: Change) -> dict[str, Any]:
    """Returns a change as JSON values."""
    return {**change._asdict(), "path": str(change.path)}


def format_change(change: Change) -> str:
    """Returns one line: `photos/a.jpg.xmp: +cat -dog`."""
    names = [*(f"+{name}" for name in change.added), *(f"-{name}" for name in change.removed)]
    return f"{change.path}: {' '.join(names) or 'other fields'}"
