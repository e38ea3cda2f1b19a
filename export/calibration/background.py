"""A bundle's background: what photos look like to its encoder, for labels that learn from photos.

It is measured with the fp32 encoder if there is one: embeddings of other precisions are nearly its.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from export import ExportError
from export.graphs.graph import open_session
from export.sources.labelled_photos import (
    MOST_BACKGROUND_PHOTOS,
    LabelledPhotos,
    PhotoReader,
    Splits,
)
from service.bundle.card import BackgroundPhotos
from service.bundle.writer import BundleDraft
from service.engine.session_set import SessionSet
from service.images.folders import list_photos
from service.labels.whitening import MIN_PHOTOS, fit_whitening

if TYPE_CHECKING:
    from export.sources.open import OpenSource

logger = logging.getLogger(__name__)


def read_background_photos(folder: Path, reader: PhotoReader) -> LabelledPhotos:
    """Returns at most 2,000 usable photos at random, in and below a folder.

    Raises ExportError if there are fewer than `MIN_PHOTOS`, OSError without the folder.
    """
    paths = tuple(folder / name for name in list_photos(str(folder))[0])
    targets = np.zeros((len(paths), 0), int)
    listed = LabelledPhotos(folder.resolve().name, (), paths, targets, reader)
    photos = listed.shuffle().keep_usable(MOST_BACKGROUND_PHOTOS)
    if (count := len(photos.paths)) < MIN_PHOTOS:
        raise ExportError(
            f"--background needs at least {MIN_PHOTOS} usable photos; {folder} has {count}"
        )
    return photos


def find_background_photos(
    folder: Path | None, splits: Splits | None, opened: OpenSource | None, reader: PhotoReader
) -> LabelledPhotos | None:
    """Returns photos of the folder, else of training, else of open labels; None if too few."""
    if folder is not None:
        return read_background_photos(folder, reader)
    choices = [each for each in (splits and splits.background, opened and opened.unseen) if each]
    for photos in choices:
        if len(photos.paths) >= MIN_PHOTOS:
            return photos.sample(MOST_BACKGROUND_PHOTOS)
    logger.info(
        "labels cannot learn from photos: this needs a background of %d photos; there are %d: add "
        "--background FOLDER",
        *(MIN_PHOTOS, max((len(photos.paths) for photos in choices), default=0)),
    )
    return None


def add_background(draft: BundleDraft, photos: LabelledPhotos | None) -> BundleDraft:
    """Returns the draft with the background of photos in random order, if there are any."""
    if photos is None:
        return draft
    made = draft.graphs["encoder"]
    encoder = open_session(made.get("fp32") or next(iter(made.values())))
    sessions = SessionSet(encoder, None, None, two_towers=draft.card.has_two_towers)
    embeddings = [
        result.embedding
        for pixels in photos.read_batches()
        for result in sessions.run(pixels, [()] * len(pixels), embedded=range(len(pixels)))
    ]
    content = fit_whitening(np.array(embeddings, np.float32)).to_bytes()
    if draft.background not in (None, content):
        logger.warning(
            "the background is another one: labels that learnt from photos with the former one "
            "have to learn again"
        )
    about = BackgroundPhotos(dataset=photos.dataset, images=len(photos.paths))
    logger.info("background: %d photos of %s", about.images, about.dataset)
    card = draft.card.model_copy(update={"background": about})
    return replace(draft, card=card, background=content)
