"""What tags have learnt, as a table, as JSON and as a page."""

import base64
import io
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from service.cli import fit_report
from service.cli.fit_report import TagFit, show_fits, write_report
from service.errors import StartError
from service.labels.sources.fit import FitFigures
from service.labels.sources.source import Point
from tests.support.photos import encode_picture, make_exif, make_picture, write_photos


def make_fit(label: str, positive: int, negative: int, *shares: float | None) -> TagFit:
    """Returns a fit with average precisions of text and fit, threshold, precision and recall."""
    text, learnt, *point = shares
    points = {"calibrated": dict(zip(Point.model_fields, point, strict=False))}
    figures = {"photos": 9, "positive": positive, "negative": negative, "text_ap": text}
    figures |= {"learnt_ap": learnt, "scale": 1.0, "shift": 0.0, "points": points}
    nothing = np.zeros(0)
    return TagFit(label, FitFigures.model_validate(figures), len(point) > 1, nothing, nothing)


DOG = make_fit("dog", 1200, 3, 0.4, 0.6, 0.25, 0.91, 0.5)
FITS = [make_fit("mood", 2000, 0, None, 0.2, 0.5), DOG, DOG._replace(label="<b>$x")]


def write(folder: Path, photos: list[Path], sign: int = 1) -> str:
    """Writes a page of `FITS`; photos rank in their order, for all tags."""
    scores, signs = np.linspace(0.9, 0.1, len(photos)), np.full(len(photos), sign, np.int8)
    fits = [fit._replace(scores=scores, signs=signs) for fit in FITS]
    write_report(folder / "report.html", "<i>mine", fits, photos, folder)
    return (folder / "report.html").read_text("utf-8")


def test_tags_are_shown_by_photos_and_those_left_out_come_last(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    show_fits("mine", FITS, as_json=False)
    out = capsys.readouterr().out
    assert out.index("mine") < out.index("dog") < out.index("--all keeps them") < out.index("mood")
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
    assert ["dog", "1,200", "0.40", "0.60", "0.250", "0.91", "0.50"] in cells
    assert ["removed from 3", *[""] * 6] in cells
    assert ["mood", "2,000", "-", "0.20", "0.500", "-", "-"] in cells
    summary = "2 of 3 tags kept, 1 left out; mean average precision (AP): 0.47 learnt"
    assert out.splitlines()[-1] == f"{summary}, 0.40 by the texts"
    show_fits("mine", FITS, as_json=True)
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["label"] for record in records if record["kept"]] == ["<b>$x", "dog"]
    assert (records[2]["text_ap"], records[2]["kept"]) == (None, False)


def test_page_shows_best_and_worst_photos_and_encodes_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Path] = []
    load = fit_report.load_photo
    monkeypatch.setattr(fit_report, "load_photo", lambda path: (drawn.append(path), load(path))[1])
    photos = write_photos(tmp_path, 30)
    page = write(tmp_path, photos)
    shown = [*range(12), *reversed(range(18, 30))]
    names = re.findall(r'<img alt="([^"]*)"', page)
    assert names == [photos[number].name for number in shown] * len(FITS)
    assert sorted(drawn) == [photos[number] for number in sorted(shown)]
    assert write(tmp_path, photos, sign=-1).count("tag removed</b>") == 12 * len(FITS)


def test_hostile_names_and_unreadable_photos_do_not_break_the_page(tmp_path: Path) -> None:
    camera = encode_picture(make_picture(0, 300, 100), "JPEG", exif=make_exif(6))
    names = [b'"><script>.jpg', b"\xe2\x80\xaegpj.exe", b"bad\xff.jpg", b"$place.jpg"]
    photos = [tmp_path / os.fsdecode(name) for name in names]
    for photo in photos:
        photo.write_bytes(camera)
    photos[-1].write_bytes(b"junk")
    page = write(tmp_path, [*photos, tmp_path / "gone.jpg"])
    assert not re.search(r"<script|<i>|<b>\$|\u202e", page)
    for name in ("&lt;i&gt;mine", "&lt;b&gt;$x", r"bad\udcff.jpg", r"\u202egpj.exe"):
        assert name in page
    boxes = re.findall(r'<span class="gone" title="[^"]*">([^<]*)<', page)
    assert boxes == ["$place.jpg", "gone.jpg"] * len(FITS)
    assert page.count("left out") == 1 + 2  # the summary, and both places of `mood`
    data = base64.b64decode(re.findall(r"data:image/jpeg;base64,([^\"]+)", page)[0])
    assert Image.open(io.BytesIO(data)).size == (42, 128)  # upright


def test_page_that_cannot_be_written_is_an_error_with_its_reason(tmp_path: Path) -> None:
    photos = write_photos(tmp_path, 2)
    (tmp_path / "report.html").mkdir()
    with pytest.raises(StartError, match=r"report\.html was not written: Is a directory"):
        write(tmp_path, photos)
    (tmp_path / "report.html").rmdir()
    assert "tagged</b>" in write(tmp_path, photos)
