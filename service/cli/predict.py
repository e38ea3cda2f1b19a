"""Predicting on the command line: `ml-decoder predict`.

In: photos and a `Question`. Out: their labels on stdout, as a table, JSON or CSV, each photo as
soon as it is there. Next: `photos.py`, which labels them.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

from service.cli.console import (
    Format,
    dump_photo,
    show_photo,
    show_progress,
    write_csv,
    write_csv_head,
    write_json,
)
from service.cli.overlays import write_overlays
from service.cli.photos import label_photos
from service.labels.question import Question
from service.settings import Settings


async def predict_photos(
    photos: list[Path], question: Question, settings: Settings, output: Format
) -> bool:
    """Writes the labels of photos; returns whether all of them could be used.

    Raises:
        StartError: the pipeline cannot start as configured.
        BundleError: the bundle is absent, damaged or inconsistent.
        ServiceError: the question does not fit the label sets.
    """
    write = {
        Format.TABLE: show_photo,
        Format.JSON: lambda photo: write_json(dump_photo(photo)),
        Format.CSV: write_csv,
    }[output]
    complete, begun = True, False
    with show_progress(len(photos)) as advance:
        # Closed in any case: a model that still runs when Python ends would end it with SIGABRT.
        async with aclosing(label_photos(photos, question, settings)) as labelled:
            async for found in labelled:
                photo = found
                if question.explain:
                    photo = await asyncio.to_thread(write_overlays, found)
                if output is Format.CSV and not begun:
                    write_csv_head()  # not before the start, which may fail
                begun = True
                write(photo)
                advance()
                complete = complete and photo.failure is None
    return complete
