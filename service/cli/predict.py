"""`ml-decoder predict`: labels on stdout, and with `--explain` pictures in files."""

import asyncio
import csv
import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from service.bundle.card import InputContract
from service.cli.console import show_failure, show_progress, write_json
from service.cli.local_pipeline import PhotoResult, label_photos, run_pipeline
from service.errors import ImageError, OutOfMemory, StartError, escape
from service.images.decode import decode_image
from service.images.formats import make_overlay_name
from service.images.raw import load_photo
from service.pipeline.prediction import Prediction
from service.pipeline.scoring import ScoredLabel
from service.question import Question
from service.settings import Settings

_CSV_COLUMNS = ("photo", "label", "score", "threshold", "found", "source", "calibrated")
_WORDS = ("translation", "category", "parents")  # columns, if asked for or if labels have some
# https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA_STARTS = ("=", "+", "-", "@")
_MAX_OVERLAY_SIDE = 1024
_FOLDERS_SHOWN = 3


async def predict_photos(
    photos: Sequence[Path],
    question: Question,
    settings: Settings,
    output: str,
    folders: Mapping[Path, Path] | None = None,
) -> bool:
    """Writes labels as `table`, `json` or `csv`, maps into `folders`; False if a photo failed."""
    write: Callable[[PhotoResult], None] = _show_table if output == "table" else _write_json
    done, complete = 0, True
    written: Counter[Path] = Counter()
    with show_progress(results_on_stdout=True) as report:
        report(done, len(photos))
        # Closed in any case: if Python exits while a model runs, it ends with SIGABRT.
        async with run_pipeline(settings) as pipeline:
            selection = await pipeline.select(question)
            notes = selection.list_notes(pipeline.bundle.path)
            for note in (*notes, *map(": ".join, selection.resolved.items())):
                sys.stderr.write(f"{escape(note)}\n")
            if output == "csv":
                has_categories = any(labels.categories for labels in selection.sets)
                words = [*compress(_WORDS, (selection.lang, has_categories, question.parents))]
                _write_row((*_CSV_COLUMNS, *words, "error"))  # only after the start, which may fail
                write = partial(_write_csv, words=words)
            async with aclosing(label_photos(pipeline, selection, photos)) as labelled:
                async for photo in labelled:
                    if folders is not None:
                        target = folders[photo.path]
                        photo = await asyncio.to_thread(_write_overlays, photo, target)
                        written.update(overlay.parent for overlay in photo.overlays)
                    write(photo)
                    done += 1
                    report(done, len(photos))
                    complete = complete and photo.failure is None
    if written:
        shown = [escape(str(folder)) for folder in sorted(written)[:_FOLDERS_SHOWN]]
        if others := len(written) - len(shown):
            shown.append(f"{others} more folders")
        maps = "map" if written.total() == 1 else "maps"
        sys.stderr.write(f"{written.total()} {maps} written to {', '.join(shown)}\n")
    return complete


def _write_json(photo: PhotoResult) -> None:
    record: dict[str, Any] = {"error": photo.failure}
    if photo.prediction is not None:
        record = photo.prediction.describe(map(str, photo.overlays))
        record["labels"] = [*record["labels"]]
    write_json({"photo": str(photo.path), **record})


def _show_table(photo: PhotoResult) -> None:
    if photo.prediction is None:
        show_failure(photo)
        return
    console = Console()
    # A title would be wrapped to the table's width.
    console.print(Text(escape(str(photo.path)), "bold"), soft_wrap=True)
    labels = photo.prediction.labels
    if not labels:
        console.print("no label reaches the threshold", style="dim")
        return
    words = [name for name in _WORDS if any(getattr(label, name) for label in labels)]
    numbers = (Column(name, justify="right") for name in ("score", "threshold"))
    has_others = not all(label.found for label in labels)
    table = Table("label", *words, *numbers, *["found"] * has_others)
    for label in labels:
        mark = "" if label.calibrated else " *"
        path = " > ".join(reversed(label.parent_translations or label.parents or ()))
        score, threshold = f"{label.score:.3f}", f"{label.threshold:.3f}{mark}"
        found = ["yes" if label.found else "no"] * has_others
        cells = (Text(escape(cell)) for cell in (label.label, *_list_words(label, words, path)))
        table.add_row(*cells, score, threshold, *found)
    console.print(table)
    if not all(label.calibrated for label in labels):
        console.print(Text("* not the label's own threshold", "dim"), soft_wrap=True)


def _list_words(label: ScoredLabel, columns: Sequence[str], path: str) -> list[str]:
    words = {"translation": label.translation, "category": label.category, "parents": path}
    return [words[column] or "" for column in columns]


def _write_csv(photo: PhotoResult, *, words: Sequence[str]) -> None:
    path = str(photo.path)
    labels = () if photo.prediction is None else photo.prediction.labels
    for label in labels:
        score, threshold = f"{label.score:.6f}", f"{label.threshold:.6f}"
        found, calibrated = (str(flag).lower() for flag in (label.found, label.calibrated))
        more = _list_words(label, words, ";".join(label.parents or ()))
        row = (path, label.label, score, threshold, found, label.source, calibrated, *more, "")
        _write_row(row)
    if not labels:
        _write_row((path, *[""] * (len(_CSV_COLUMNS) - 1 + len(words)), photo.failure or ""))
    sys.stdout.flush()


def _write_row(values: Sequence[str]) -> None:
    """Writes a line of CSV; an apostrophe before a formula keeps spreadsheets from running it."""
    shown = map(escape, values)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(f"'{value}" if value.startswith(_FORMULA_STARTS) else value for value in shown)


def choose_folders(
    photos: Sequence[Path], given: Sequence[Path], out: Path | None
) -> dict[Path, Path]:
    """Returns the folder of each photo's overlays: its own, or one in `out`, which is created.

    `out` gets the subfolders below the common folder of `given`, so that photos of one name do not
    collide. Raises StartError if a symbolic link would lead to another folder than it seems, or if
    `out` cannot be created.
    """
    roots = {path if path.is_dir() else path.parent for path in given}
    if out is None:
        parents = {folder for photo in photos for folder in photo.parents}
        below = {folder for folder in parents if any(map(folder.is_relative_to, roots))}
        if links := sorted(folder for folder in below if folder.is_symlink()):
            raise StartError(f"{links[0]} is a symbolic link: --explain needs --out FOLDER")
        return {photo: photo.parent for photo in photos}
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"--out {out}: {error.strerror}") from error
    base = os.path.commonpath([os.path.abspath(root) for root in roots])
    return {photo: out / os.path.relpath(photo.parent, base) for photo in photos}


def _write_overlays(photo: PhotoResult, folder: Path) -> PhotoResult:
    """Writes `dog.jpg.map-1-cat.jpg` and so on into a folder, best label first."""
    if photo.prediction is None:
        return photo
    try:
        return photo._replace(overlays=tuple(_draw(photo.path, photo.prediction, folder)))
    except OSError as error:
        reason = error.strerror or "the pictures cannot be made"
    except ImageError:
        reason = "the photo has changed"
    except OutOfMemory as error:
        reason = error.describe()
    return PhotoResult(photo.path, None, f"its maps cannot be written: {reason}")


def _draw(path: Path, prediction: Prediction, folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    # Turned and flattened as the model sees it.
    shrink = min(1.0, _MAX_OVERLAY_SIDE / max(prediction.width, prediction.height))
    contract = InputContract(
        width=max(1, round(prediction.width * shrink)),
        height=max(1, round(prediction.height * shrink)),
        resize_mode="squash",
        interpolation="bicubic",
    )
    max_pixels = prediction.width * prediction.height
    decoded = decode_image(load_photo(path), contract, max_pixels=max_pixels)
    upright = Image.fromarray(decoded.pixels).convert("RGBA")
    explained = zip(prediction.labels, prediction.explanations, strict=False)
    for rank, (label, explanation) in enumerate(explained, start=1):
        assert explanation.overlay is not None
        with Image.open(io.BytesIO(explanation.overlay)) as overlay:
            layer = overlay.convert("RGBA").resize(upright.size, Image.Resampling.BICUBIC)
        target = folder / make_overlay_name(path.name, rank, label.label)
        target.unlink(missing_ok=True)  # a link of this name is replaced, not followed
        Image.alpha_composite(upright, layer).convert("RGB").save(target, quality=90)
        yield target
