"""The work on one batch, in a worker thread: decode the remaining photos, run the engine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.bundle.card import InputContract
from service.engine.engine import Engine
from service.engine.heads import Head, HeadResults
from service.errors import ImageError, InferenceFailed, OutOfMemory, without_frames
from service.images.decode import DecodedImage, decode_image
from service.images.jpeg import Jpeg
from service.scheduling.batcher import IsOnlyRun
from service.stages import Observer, Stage


@dataclass(frozen=True, eq=False)
class Item:
    """A photo in the queue."""

    photo: Jpeg | DecodedImage  # the worker decodes a JPEG
    heads: tuple[Head, ...]
    explained: bool  # whether the answer has maps
    embedded: bool = False  # whether the answer needs the photo's embedding


@dataclass(frozen=True, eq=False)
class Result:
    """A decoded photo, and the engine's output for it."""

    image: DecodedImage
    output: HeadResults
    stages: tuple[Stage, ...]  # of the photo's decoding, if done here, and of its batch


@dataclass(frozen=True, eq=False)
class Inference:
    """Runs batches; `run` may be called in several threads; `observers` get every batch."""

    engine: Engine
    contract: InputContract
    max_pixels: int
    observers: Sequence[Observer] = ()

    def run(self, items: Sequence[Item], uses_all_threads: IsOnlyRun) -> list[Result | Exception]:
        """Returns the result or the error of each item; calls `uses_all_threads` after decoding.

        Raises InferenceFailed for the batch, or ServiceBroken if the engine fails on every one.
        """
        decoded = [self._decode(item) for item in items]
        photos = [(item, *image) for item, image in zip(items, decoded, strict=True)
                  if not isinstance(image, Exception)]  # fmt: skip
        if not photos:
            return [error for error in decoded if isinstance(error, Exception)]
        images = [image.pixels for _, image, _ in photos]
        pixels = np.stack(images) if len(images) > 1 else images[0][np.newaxis]  # not copied
        heads = [item.heads for item, _, _ in photos]
        explained = [row for row, (item, _, _) in enumerate(photos) if item.explained]
        embedded = [row for row, (item, _, _) in enumerate(photos) if item.embedded]
        started = time.perf_counter()
        try:
            rows = self.engine.run(
                pixels, heads, alone=uses_all_threads(), explained=explained, embedded=embedded
            )
        except InferenceFailed as failure:
            if not isinstance(failure, OutOfMemory):
                self.engine.check()
            raise
        seconds = time.perf_counter() - started
        for observer in self.observers:
            observer.on_batch(len(photos), seconds)
        outputs = iter(rows)
        return [
            photo
            if isinstance(photo, Exception)
            else Result(photo[0], output := next(outputs), (*photo[1], *output.stages))
            for photo in decoded
        ]

    def _decode(
        self, item: Item
    ) -> tuple[DecodedImage, tuple[Stage, ...]] | ImageError | OutOfMemory:
        if isinstance(item.photo, DecodedImage):
            return item.photo, ()
        started = time.perf_counter()
        try:
            image = decode_image(item.photo, self.contract, self.max_pixels)
        except (ImageError, OutOfMemory) as error:
            return without_frames(error)
        return image, (Stage("decode", started, time.perf_counter()),)
