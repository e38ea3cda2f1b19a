"""Inference: what a worker does with a batch: decode what is not decoded yet, run the engine.

In: the items that a worker took. Out: for each of them what the engine found, or why its photo
cannot be used. Next: `engine.py`, which runs the graphs; `scoring.py`, which reads its logits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.bundle.card import InputContract
from service.engine.engine import Engine
from service.engine.heads import Head, LogitsArray
from service.errors import (
    ImageError,
    InferenceFailed,
    OutOfMemory,
    ServiceBroken,
    without_frames,
)
from service.images.decode import DecodedImage, PixelArray, decode_image
from service.images.jpeg import Jpeg
from service.scheduling.batcher import IsAlone
from service.scheduling.stages import Stage, Watcher, collect_stages, time_stage


@dataclass(frozen=True, eq=False)
class Item:
    """What waits for a worker.

    Attributes:
        photo: a JPEG that the worker decodes, or pixels.
        heads: the heads to run.
        explained: whether maps will be asked for.
    """

    photo: Jpeg | DecodedImage
    heads: tuple[Head, ...]
    explained: bool


@dataclass(frozen=True, eq=False)
class Found:
    """What a run found for one item.

    Attributes:
        image: the photo, decoded.
        logits: float32 [L] or [N] for each head.
        memories: float32 [S, D] for each head of an explained item, else none.
        stages: when the photo's own decoding and its batch's stages ran.
    """

    image: DecodedImage
    logits: tuple[LogitsArray, ...]
    memories: tuple[NDArray[np.float32], ...]
    stages: tuple[Stage, ...]


class Inference:
    """Runs batches; `run` is called in the workers' threads.

    Attributes:
        watchers: who is told of every batch.
    """

    def __init__(self, engine: Engine, contract: InputContract, max_pixels: int) -> None:
        """Puts the two stages together.

        Args:
            engine: runs the graphs.
            contract: what the encoder wants.
            max_pixels: most pixels of a photo.
        """
        self.watchers: tuple[Watcher, ...] = ()
        self._engine = engine
        self._contract = contract
        self._max_pixels = max_pixels

    def run(self, items: Sequence[Item], is_alone: IsAlone) -> list[Found | Exception]:
        """Runs one batch.

        Args:
            items: what to run.
            is_alone: asked after the decoding; `batcher.py`.

        Returns:
            For each item what was found, or its `ImageError`, which costs only itself.

        Raises:
            InferenceFailed: the engine failed on the batch.
            ServiceBroken: the engine fails on everything.
        """
        decoded = [self._decode(item) for item in items]
        good = [(item, *each) for item, each in zip(items, decoded, strict=True)
                if not isinstance(each, ImageError)]  # fmt: skip
        found = iter(self._infer(good, is_alone)) if good else iter(())
        return [each if isinstance(each, ImageError) else next(found) for each in decoded]

    def _decode(self, item: Item) -> tuple[DecodedImage, list[Stage]] | ImageError:
        if isinstance(item.photo, DecodedImage):
            return item.photo, []
        try:
            with collect_stages() as stages, time_stage("decode"):
                image = decode_image(item.photo, self._contract, self._max_pixels)
        except ImageError as error:
            return without_frames(error)
        return image, stages

    def _infer(
        self, photos: Sequence[tuple[Item, DecodedImage, list[Stage]]], is_alone: IsAlone
    ) -> list[Found]:
        pixels = _stack([image.pixels for _, image, _ in photos])
        heads = [item.heads for item, _, _ in photos]
        explained = [row for row, (item, _, _) in enumerate(photos) if item.explained]
        started = time.perf_counter()
        with collect_stages() as stages:
            try:
                rows = self._engine.run(pixels, heads, alone=is_alone(), explained=explained)
            except InferenceFailed as failure:
                self._check_engine(failure)
                raise
        seconds = time.perf_counter() - started
        for watcher in self.watchers:
            watcher.saw_batch(len(photos), seconds)
        return [
            Found(image, row.logits, row.memories, (*decoding, *stages))
            for (_, image, decoding), row in zip(photos, rows, strict=True)
        ]

    def _check_engine(self, failure: InferenceFailed) -> None:
        """Tells a batch that failed from a GPU that is lost to this process for good."""
        if isinstance(failure, OutOfMemory):
            return
        try:
            self._engine.try_out()
        except OutOfMemory:
            return
        except InferenceFailed as error:
            raise ServiceBroken("the engine runs nothing any more") from error


def _stack(images: Sequence[PixelArray]) -> PixelArray:
    """Returns images as a batch; a lone one is not copied."""
    return images[0][np.newaxis] if len(images) == 1 else np.stack(images)
