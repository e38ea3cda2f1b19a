"""Opens a bundle's graphs in ONNX Runtime and runs them.

In: a verified `Bundle` and the device that is asked for. Out: an `Engine`, which turns
images uint8 [B, H, W, 3] into the logits that each of them asks for. How a batch goes through
the graphs is in `lanes.py`. Next: `scoring.py`, which reads logits.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from service.bundle.card import CPU_DEVICES, Device, RunPrecision
from service.bundle.reader import Bundle
from service.engine.devices import check_device, choose_precision
from service.engine.heads import Head
from service.engine.lanes import LABELS_PER_RUN, HeadResults, Lane, open_encoder, open_lane
from service.engine.sessions import PROVIDERS, Place, first_line
from service.errors import BundleError, InferenceFailed, OutOfMemory, StartError
from service.images.decode import PixelArray

_log = logging.getLogger(__name__)

_DEFAULT_BATCH_SIZE: dict[Device, int] = {"cpu": 4, "openvino": 4, "cuda": 16, "tensorrt": 16}
# The second image of a batch saves a twentieth of their time, all the others as much together.
_SMALL_CPU_BATCH_SIZE = 2
_OUT_OF_MEMORY_SIGNS = (
    *("out of memory", "failed to allocate", "alloc_failed", "allocation_failed"),
    *("bad_alloc", "bad allocation"),
)


class Engine:
    """The graphs of one bundle on one device; safe to run from several threads.

    On a CPU, `workers` runs at once with one thread each serve more images a second than
    one run with all threads; but an image that is alone is answered soonest by all of
    them. So a CPU engine has two lanes: single-threaded sessions that the workers share,
    and, where there is more than one thread, sessions with all threads for a lone image.
    A GPU engine has one worker; its batches come in a few sizes, each with an encoder of its
    own on CUDA, where a convolution keeps the plan of one size only and would make a new one
    whenever the size changes.

    Attributes:
        device: where it runs.
        provider: ONNX Runtime's name of what runs it.
        precision: variant of the graphs.
        max_batch_size: most images in one run.
        small_batch_size: images in one run that are nearly as quick each as in a larger one.
        workers: runs that are worth having at the same time.
    """

    def __init__(self, bundle: Bundle, place: Place, max_batch_size: int) -> None:
        """Opens and checks the sessions; `open_engine` is what to call."""
        self.device = place.device
        self.provider = PROVIDERS[place.device][0][0]
        self.precision = place.precision
        self.max_batch_size = max_batch_size or _DEFAULT_BATCH_SIZE[place.device]
        on_cpu = place.device in CPU_DEVICES
        smallest = _SMALL_CPU_BATCH_SIZE if on_cpu else self.max_batch_size
        self.small_batch_size = min(smallest, self.max_batch_size)
        self.workers = place.threads if on_cpu else 1
        self._card = bundle.card
        shared = replace(place, threads=1, runs=place.threads) if on_cpu else place
        self._shared = open_lane(bundle, shared)
        self._wide = self._shared
        if self.workers > 1:
            self._wide = open_lane(bundle, replace(place, spinning=True))
        self._sized = self._open_sizes(bundle, place) if place.device == "cuda" else {}

    def run(
        self,
        images: PixelArray,
        asked: Sequence[Sequence[Head]],
        *,
        alone: bool = False,
        explained: Collection[int] = (),
    ) -> list[HeadResults]:
        """Runs one batch.

        Args:
            images: uint8 [B, H, W, 3], RGB.
            asked: for each image, the heads to run: queries float32 [L, K] of open labels,
                or None for the trained labels.
            alone: nothing else runs, so a single image may use every thread.
            explained: rows of the images whose maps will be asked for.

        Returns:
            The results of each image, which depend neither on the other images nor on the other
            labels.

        Raises:
            OutOfMemory: the device or the machine has too little memory for the batch.
            InferenceFailed: ONNX Runtime failed for another reason.
        """
        size = self._round_up(len(images))
        lane = self._sized.get(size, self._wide if alone and size == 1 else self._shared)
        try:
            return lane.run(self._fill_up(images, size), asked, explained)
        except Exception as error:
            # ONNX Runtime's exceptions have no common base, and memory has none of them.
            text = str(error).lower()
            if isinstance(error, MemoryError) or any(s in text for s in _OUT_OF_MEMORY_SIGNS):
                raise OutOfMemory(f"no memory for a batch of {len(images)}") from error
            raise InferenceFailed(f"a batch of {len(images)} failed") from error

    def try_out(self) -> None:
        """Runs one black image, as a check that the device still works, or works at all.

        Raises:
            InferenceFailed: it does not.
        """
        self.run(self._make_black(1), [self._list_fixed_heads()])

    def warm_up(self, query_width: int | None = None) -> None:
        """Runs every batch size once, so that no request pays for a first run.

        Args:
            query_width: K, the width of a label query; None where there is no open head.

        Raises:
            BundleError: the graphs do not run, or give logits of a wrong shape.
            StartError: the memory does not suffice for the largest batch.
        """
        heads, widest = self._list_fixed_heads(), self._list_fixed_heads()
        if query_width is not None:
            heads.append(np.zeros((1, query_width), np.float32))
            widest.append(np.zeros((LABELS_PER_RUN, query_width), np.float32))
        # The extremes first: TensorRT builds for the range of sizes that it has seen.
        self._warm_up_size(1, heads, alone=True)
        self._warm_up_size(1, heads)
        self._warm_up_size(self.max_batch_size, widest)
        for size in self._batch_sizes[1:-1]:
            self._warm_up_size(size, heads)

    def _open_sizes(self, bundle: Bundle, place: Place) -> dict[int, Lane]:
        """Returns a lane for each batch size, which differ in their encoders alone."""
        *smaller, largest = self._batch_sizes
        encoders = {size: open_encoder(bundle, place) for size in smaller}
        lanes = {size: replace(self._shared, encoder=encoder) for size, encoder in encoders.items()}
        lanes[largest] = self._shared
        return lanes

    def _fill_up(self, images: PixelArray, size: int) -> PixelArray:
        """Returns the images and as many black ones as the batch size lacks."""
        missing = size - len(images)
        if not missing:
            return images
        return np.concatenate([images, self._make_black(missing)])

    def _list_fixed_heads(self) -> list[Head]:
        """Returns the heads that need no queries."""
        return [] if self._card.trained_head is None else [None]

    def _make_black(self, count: int) -> PixelArray:
        contract = self._card.input
        return np.zeros((count, contract.height, contract.width, 3), np.uint8)

    @property
    def _batch_sizes(self) -> list[int]:
        """The batch sizes that it runs, ascending."""
        return sorted({self._round_up(count) for count in range(1, self.max_batch_size + 1)})

    def _round_up(self, count: int) -> int:
        """Returns the batch size that `count` images run in.

        A GPU chooses algorithms, plans memory and, with TensorRT, builds anew for each size, and a
        few images more cost it little: it runs powers of two.
        """
        if self.device in CPU_DEVICES:
            return count
        return min(int(2 ** math.ceil(math.log2(count))), self.max_batch_size)

    def _warm_up_size(self, size: int, heads: Sequence[Head], *, alone: bool = False) -> None:
        try:
            results = self.run(self._make_black(size), [heads] * size, alone=alone)
        except OutOfMemory as error:
            raise StartError(f"{error}: set a smaller max_batch_size") from error
        except InferenceFailed as error:
            raise BundleError(f"the graphs do not run: {error.__cause__}") from error
        for head, logits in zip(heads, results[0].logits, strict=True):
            wanted = self._num_trained if head is None else len(head)
            if logits.shape != (wanted,):
                raise BundleError(
                    f"an image gave logits of shape {list(logits.shape)}, not [{wanted}]"
                )

    @property
    def _num_trained(self) -> int:
        head = self._card.trained_head
        return 0 if head is None else head.num_labels


def open_engine(
    bundle: Bundle,
    *,
    device: Literal["auto"] | Device = "auto",
    precision: Literal["auto"] | RunPrecision = "auto",
    max_batch_size: int = 0,
    threads: int = 1,
) -> Engine:
    """Opens a bundle's graphs.

    Args:
        bundle: what to open.
        device: where to run; `auto` takes CUDA where it works and else the CPU, and says
            so in the log.
        precision: variant of the graphs; `auto` is the bundle's choice for the device.
        max_batch_size: most images in one run; 0 is the device's default.
        threads: CPU threads that compute, all runs together.

    Raises:
        StartError: the device does not work here, or the bundle lacks the precision.
        BundleError: the graphs are damaged or are not what the manifest says.
    """

    def open_on(device: Device) -> Engine:
        check_device(device)
        place = Place(device, choose_precision(bundle, device, precision), threads)
        return _open_in(bundle, place, max_batch_size)

    if device != "auto":
        return open_on(device)
    try:
        return open_on("cuda")
    except StartError as error:
        _log.warning("device auto: %s; FALLING BACK to the CPU", error)
        return open_on("cpu")


def _open_in(bundle: Bundle, place: Place, max_batch_size: int) -> Engine:
    """Returns an engine; one on a GPU has run an image."""
    engine = Engine(bundle, place, max_batch_size)
    if place.device not in CPU_DEVICES:
        try:
            engine.try_out()  # a GPU that is too old for this CUDA, or full, opens all the same
        except InferenceFailed as error:
            reason = first_line(error.__cause__ or error)
            raise StartError(f"device {place.device}: {reason}") from error
    return engine
