"""What tags have learnt, for a person to judge: a table or JSON, and a page with photos."""

import html
import io
from base64 import b64encode
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from os.path import relpath
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.archive.choice import ABSENT, PRESENT, REJECTED, UNKNOWN
from service.bundle.card import InputContract
from service.cli.console import show_progress, write_json
from service.errors import ServiceError, StartError, escape
from service.files import replace_file
from service.images.decode import decode_image
from service.images.raw import load_photo
from service.labels.sources.fit import FitFigures

_COLUMNS = ("tag", "photos", "text_AP", "learnt_AP", "threshold", "precision", "recall", "note")
_LEFT_OUT = "Left out: scores do not tell photos with these tags from others; --all keeps them"
_SHOWN, _SIDE = 12, 128  # photos of a list; pixels
_THUMBNAIL = InputContract(height=_SIDE, width=_SIDE, resize_mode="pad", interpolation="bilinear")
_MAX_PIXELS = 178_000_000  # the highest that the setting takes
_THREADS = 4  # a PNG of 50 megapixels takes 150 MB in each
_TEMPLATE = Path(__file__).with_suffix(".html")
_SIGNS = {PRESENT: "tagged", ABSENT: "not tagged", REJECTED: "tag removed", UNKNOWN: "without tags"}


class TagFit(NamedTuple):
    """What a tag has learnt."""

    label: str
    figures: FitFigures
    is_kept: bool  # False: its photos cannot be told from others, so it is left out
    scores: NDArray[np.float64]  # of each photo, 0..1, by fits that did not learn from it
    signs: NDArray[np.int8]  # of each photo, keys of `_SIGNS`


def show_fits(name: str, fits: Sequence[TagFit], *, as_json: bool) -> None:
    """Shows tables, or one JSON object a tag: kept tags by photos, then those left out."""
    fits = sorted(fits, key=lambda fit: (not fit.is_kept, -fit.figures.positive, fit.label))
    if as_json:
        for fit in fits:
            point = fit.figures.points["calibrated"].model_dump()
            counts = fit.figures.model_dump(exclude={"scale", "shift", "points"})
            write_json({"label": fit.label, **counts, **point, "kept": fit.is_kept})
        return
    console = Console()
    for heading, is_kept in ((name, True), (_LEFT_OUT, False)):
        table = Table(_COLUMNS[0])
        for head in _COLUMNS[1:-1]:  # 18 of 80 characters remain for tags, and notes below them
            table.add_column(head.replace("_", "\n"), justify="right", no_wrap=True)
        for tag, *figures, note in (_list_cells(fit) for fit in fits if fit.is_kept == is_kept):
            cell = Text.assemble(tag, (f"\n{note}" if note else "", "dim"))
            table.add_row(cell, *map(Text, figures))
        if table.row_count:
            console.print(Text(escape(heading), "bold"), soft_wrap=True)
            console.print(table)
    console.print(Text(_sum_up(fits)), soft_wrap=True)


def write_report(
    file: Path, name: str, fits: Sequence[TagFit], photos: Sequence[Path], folder: Path
) -> None:
    """Writes a page with photos of each tag, whole or not at all; StartError if it cannot."""
    template = _TEMPLATE.read_text("utf-8")
    page, row, section = map(Template, template.split("<!-- next template -->\n"))
    chosen = [_choose(fit) for fit in fits]
    shown = sorted({photo for best, worst in chosen for photo in (*best, *worst)})
    pictures: dict[int, str] = {}
    with ThreadPoolExecutor(_THREADS) as pool, show_progress(results_on_stdout=False) as show:
        drawn = pool.map(lambda photo: _draw(photos[photo], folder), shown)
        for photo, picture in zip(shown, drawn, strict=True):
            pictures[photo] = picture
            show(len(pictures), len(shown))

    rows, sections = {}, {}
    for place, (fit, lists) in enumerate(zip(fits, chosen, strict=True)):
        texts = dict(zip(_COLUMNS, map(html.escape, _list_cells(fit)), strict=True))
        notes = ("" if fit.is_kept else "left out", texts["note"])
        texts |= {"place": str(place), "note": "; ".join(filter(None, notes))}
        for kind, some in zip(("best", "worst"), lists, strict=True):
            pairs = zip(some, fit.scores[some], fit.signs[some].tolist(), strict=True)
            texts[kind] = "\n".join(
                f'<figure data-sign="{sign}">{pictures[photo]}<figcaption>{score:.2f} '
                f"<b>{_SIGNS[sign]}</b></figcaption></figure>"
                for photo, score, sign in pairs
            )
        # What needs a look comes first.
        rows[not fit.is_kept, fit.figures.learnt_ap, place] = row.substitute(texts)
        sections[fit.label.casefold(), place] = section.substitute(texts)
    whole = page.substitute(
        name=html.escape(escape(name)),
        summary=_sum_up(fits),
        rows="".join(rows[key] for key in sorted(rows)),
        sections="".join(sections[key] for key in sorted(sections)),
    )
    try:  # file names that are not UTF-8 have lone surrogates
        replace_file(file, whole.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise StartError(f"{file} was not written: {error.strerror or error}") from error


def _choose(fit: TagFit) -> tuple[list[int], list[int]]:
    """Returns the photos of the highest scores, and of the lowest others that have the tag."""
    best, others = np.split(np.argsort(-fit.scores, kind="stable"), [_SHOWN])
    return best.tolist(), others[fit.signs[others] == PRESENT][: -_SHOWN - 1 : -1].tolist()


def _draw(photo: Path, folder: Path) -> str:
    """Returns an element with the photo, or with its name if it cannot be decoded any more."""
    name = html.escape(escape(relpath(photo, folder)))
    try:
        decoded = decode_image(load_photo(photo), _THUMBNAIL, _MAX_PIXELS)
    except (OSError, MemoryError, ServiceError):
        return f'<span class="gone" title="{name}">{name}</span>'
    sides = np.array([decoded.width, decoded.height])
    margins = _SIDE / 2 * (1 - sides / sides.max())  # `pad` has put the photo into the middle
    left, top = np.ceil(margins).clip(max=_SIDE // 2 - 1).astype(int)
    picture, file = decoded.pixels[top : _SIDE - top, left : _SIDE - left], io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=70)
    data = b64encode(file.getvalue()).decode()
    return f'<img alt="{name}" title="{name}" src="data:image/jpeg;base64,{data}">'


def _list_cells(fit: TagFit) -> tuple[str, ...]:
    """Returns a text for each of `_COLUMNS`."""
    figures, point = fit.figures, fit.figures.points["calibrated"]
    shares = (figures.text_ap, figures.learnt_ap, point.precision, point.recall)
    text, learnt, *rest = ("-" if share is None else f"{share:.2f}" for share in shares)
    note = f"removed from {figures.negative:,}" if figures.negative else ""
    threshold = f"{point.threshold:.3f}"
    return escape(fit.label), f"{figures.positive:,}", text, learnt, threshold, *rest, note


def _sum_up(fits: Sequence[TagFit]) -> str:
    kept = sum(fit.is_kept for fit in fits)
    summary = f"{kept} of {len(fits)} tags kept, {len(fits) - kept} left out"
    learnt = np.mean([fit.figures.learnt_ap for fit in fits])
    summary += f"; mean average precision (AP): {learnt:.2f} learnt"
    texts = [fit.figures.text_ap for fit in fits]
    known = [share for share in texts if share is not None]
    return f"{summary}, {np.mean(known):.2f} by the texts" if known else summary
