"""Runs a bundle's image graphs on one device: images uint8 [B, H, W, 3] -> logits."""

import logging
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.bundle.card import CPU_DEVICES, Device, RunPrecision
from service.bundle.reader import Bundle
from service.engine.devices import PROVIDERS, check_device, choose_precision, parse_cuda_options
from service.engine.heads import (
    LABELS_PER_RUN,
    TRAINED_HEAD,
    Head,
    HeadResults,
    Images,
    LabelVectors,
    ScreenedLogits,
    ScreenedQueries,
    TrainedHead,
)
from service.engine.session_set import SessionSet, open_encoder, open_session_set
from service.engine.sessions import SessionConfig, first_line
from service.errors import BundleError, InferenceFailed, OutOfMemory, ServiceBroken, StartError

logger = logging.getLogger(__name__)

_DEFAULT_BATCH_SIZE: dict[Device, int] = {"cpu": 4, "openvino": 4, "cuda": 16, "tensorrt": 16}
# On a CPU, a batch of 2 saves 5 % of the time per image; a larger one at most 5 % more.
_SMALL_CPU_BATCH_SIZE = 2
_OUT_OF_MEMORY_SIGNS = (
    *("out of memory", "failed to allocate", "alloc_failed", "allocation_failed"),
    *("bad_alloc", "bad allocation"),
)


class Engine:
    """The image graphs of one bundle on one device; thread-safe.

    On a CPU, the workers share a single-threaded session set; a lone image takes one with all
    threads. On a GPU, batches are padded to powers of two. On CUDA, each size has its own encoder.

    `workers` is the useful number of parallel runs; runs of more than `small_batch_size` images
    save little time per image.
    """

    def __init__(self, bundle: Bundle, config: SessionConfig, max_batch_size: int) -> None:
        self.device = config.device
        self.provider = PROVIDERS[config.device][0][0]
        self.precision = config.precision
        self.max_batch_size = max_batch_size or _DEFAULT_BATCH_SIZE[config.device]
        on_cpu = config.device in CPU_DEVICES
        smallest = _SMALL_CPU_BATCH_SIZE if on_cpu else self.max_batch_size
        self.small_batch_size = min(smallest, self.max_batch_size)
        self.workers = config.threads if on_cpu else 1
        self._card = bundle.card
        shared = replace(config, threads=1, parallel_runs=config.threads) if on_cpu else config
        self._shared = open_session_set(bundle, shared)
        self._all_threads = self._shared
        width = self._shared.encoder.get_outputs()[0].shape[-1]
        self.width = width if isinstance(width, int) else None
        """Of tokens and embeddings, D; None if the graph does not say it."""
        if self.workers > 1:
            self._all_threads = open_session_set(bundle, replace(config, spinning=True))
        self._by_size: dict[int, SessionSet] = {}
        if config.device == "cuda":
            self._by_size = {
                size: replace(self._shared, encoder=open_encoder(bundle, config))
                for size in self._batch_sizes[:-1]
            }

    def run(
        self,
        images: Images,
        asked: Sequence[Sequence[Head]],
        *,
        alone: bool = False,
        explained: Collection[int] = (),
        embedded: Collection[int] = (),
    ) -> list[HeadResults]:
        """Runs one batch; results depend on neither the other images nor the other labels.

        `asked` are the heads for each image, `explained` the rows of images that need memories for
        maps, `embedded` those that need an embedding, with tokens if explained too. If nothing else
        runs (`alone`), a single image uses every thread. Raises OutOfMemory if the device or the
        machine has too little memory, and InferenceFailed if ONNX Runtime fails otherwise.
        """
        size = self._round_up(len(images))
        sessions = self._all_threads if alone and size == 1 else self._shared
        padding = size - len(images)
        batch = np.concatenate([images, self._make_black(padding)]) if padding else images
        sessions = self._by_size.get(size, sessions)
        try:
            return sessions.run(batch, asked, explained, embedded)
        except Exception as error:
            # ONNX Runtime's exceptions have no common base, and none of their own for memory.
            text = str(error).lower()
            if isinstance(error, MemoryError) or any(s in text for s in _OUT_OF_MEMORY_SIGNS):
                raise OutOfMemory(f"out of memory in a batch of {len(images)}") from error
            raise InferenceFailed(f"a batch of {len(images)} failed") from error

    def score(self, embeddings: NDArray[np.float32], heads: Sequence[Head]) -> list[HeadResults]:
        """Runs heads on embeddings [B, C] of an earlier run; without two towers, `ZeroHead` only.

        Two towers score the first token, of any length; the others are for maps.
        """
        asked = [heads] * len(embeddings)
        sessions = replace(self._shared, long_labels=sys.maxsize)  # nothing waits for these
        return sessions.run_heads(embeddings[:, np.newaxis], asked)

    def try_out(self) -> None:
        """Runs one black image. Raises `InferenceFailed` if the device does not work."""
        self.run(self._make_black(1), [self._list_trained_heads()])

    def check(self) -> None:
        """Raises `ServiceBroken` if the engine cannot run at all, as after the loss of a GPU."""
        try:
            self.try_out()
        except InferenceFailed as error:
            if not isinstance(error, OutOfMemory):
                raise ServiceBroken("the engine fails on every batch") from error

    def warm_up(self, make_labels: Callable[[int], LabelVectors] | None = None) -> None:
        """Runs every batch size once; `make_labels` gives vectors of some open labels.

        Raises `BundleError` if the graphs do not run or fit, `StartError` if memory is short.
        """
        heads, widest = self._list_trained_heads(), self._list_trained_heads()
        if make_labels is not None:
            for count, into in ((1, heads), (LABELS_PER_RUN, widest)):
                labels = make_labels(count)
                into.append(labels.queries)
                if labels.keys is not None:
                    flat = np.zeros(count, np.float32)
                    into.append(ScreenedQueries(labels.queries, labels.keys, flat, flat, count))
        # The extremes first: TensorRT builds for the range of sizes that it has seen.
        self._warm_up_size(1, heads, alone=True)
        self._warm_up_size(1, heads)
        self._warm_up_size(self.max_batch_size, widest)
        for size in self._batch_sizes[1:-1]:
            self._warm_up_size(size, heads)

    def _warm_up_size(self, size: int, heads: Sequence[Head], *, alone: bool = False) -> None:
        try:
            results = self.run(self._make_black(size), [heads] * size, alone=alone)
        except OutOfMemory as error:
            raise StartError(f"{error}: set a smaller max_batch_size") from error
        except InferenceFailed as error:
            raise BundleError(f"the graphs do not run: {error.__cause__}") from error
        trained = self._card.trained_head
        num_trained = trained.num_labels if trained else 0
        for head, row in zip(heads, results[0].logits, strict=True):
            logits = row.logits if isinstance(row, ScreenedLogits) else row
            wanted = num_trained if isinstance(head, TrainedHead) else len(head)
            if logits.shape != (wanted,):
                shape = list(logits.shape)
                raise BundleError(f"an image gave logits of shape {shape}, not [{wanted}]")

    def _list_trained_heads(self) -> list[Head]:
        return [] if self._card.trained_head is None else [TRAINED_HEAD]

    def _make_black(self, count: int) -> Images:
        return np.zeros((count, *self._card.input.shape), np.uint8)

    @property
    def _batch_sizes(self) -> list[int]:
        return sorted({self._round_up(count) for count in range(1, self.max_batch_size + 1)})

    def _round_up(self, count: int) -> int:
        # For each new size a GPU chooses algorithms, plans memory and, with TensorRT, builds again.
        # A few more images cost little there, so it runs powers of two.
        if self.device in CPU_DEVICES:
            return count
        return min(1 << (count - 1).bit_length(), self.max_batch_size)


def open_engine(  # noqa: PLR0913 - a parameter for each setting
    bundle: Bundle,
    *,
    device: Literal["auto"] | Device = "auto",
    precision: Literal["auto"] | RunPrecision = "auto",
    max_batch_size: int = 0,
    threads: int = 1,
    cuda_options: str | None = None,
) -> Engine:
    """Opens a bundle's image graphs.

    Device `auto` is CUDA if it works, else the CPU with a warning in the log, but CUDA alone with
    `cuda_options`; `max_batch_size` 0 is the device's default; `threads` are those of all parallel
    runs together. Raises `StartError` if device, precision or options do not work here,
    `BundleError` if a graph is damaged or does not fit.
    """

    def open_on(device: Device) -> Engine:
        options = parse_cuda_options(cuda_options, device)
        check_device(device)
        chosen = choose_precision(bundle, device, precision)
        config = SessionConfig(device, chosen, threads, cuda_options=options)
        engine = Engine(bundle, config, max_batch_size)
        if device not in CPU_DEVICES:
            try:
                engine.try_out()  # sessions open even if the GPU is full or too old for this CUDA
            except InferenceFailed as error:
                reason = first_line(error.__cause__ or error)
                raise StartError(f"device {device}: {reason}") from error
        return engine

    if device != "auto":
        return open_on(device)
    try:
        return open_on("cuda")
    except StartError as error:
        if cuda_options:
            raise
        logger.warning("device auto: %s; FALLING BACK to the CPU", error)
        return open_on("cpu")
