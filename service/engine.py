"""Opens a bundle's graphs in ONNX Runtime and runs them.

In: a verified `Bundle` and the device that is asked for. Out: an `Engine`, which turns
images uint8 [B, H, W, 3] into logits float32 [B, N] in two steps: the encoder gives
tokens [B, S, C], and a head reads tokens. Next: `scoring.py`, which reads logits.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.bundle import Bundle, BundleError
from service.card import Device, Precision
from service.errors import InferenceFailed, OutOfMemory, StartError
from service.images import PixelArray
from service.sessions import PROVIDERS, check_tensor, open_session

_log = logging.getLogger(__name__)

TokenArray = NDArray[np.float32]
LogitsArray = NDArray[np.float32]

_DEFAULT_BATCH_SIZE: dict[Device, int] = {"cpu": 4, "cuda": 16, "tensorrt": 16}
_OUT_OF_MEMORY_SIGNS = ("out of memory", "failed to allocate", "bad_alloc", "bad allocation")


@dataclass(frozen=True)
class _Lane:
    """One session for each graph; several threads may run the same lane at once."""

    encoder: ort.InferenceSession
    trained_head: ort.InferenceSession

    def encode(self, images: PixelArray) -> TokenArray:
        (tokens,) = self.encoder.run(["tokens"], {"images": images})
        return np.asarray(tokens, np.float32)

    def score_trained(self, tokens: TokenArray) -> LogitsArray:
        (logits,) = self.trained_head.run(["logits"], {"tokens": tokens})
        return np.asarray(logits, np.float32)


class Engine:
    """The graphs of one bundle on one device; safe to run from several threads.

    On a CPU, `workers` runs at once with one thread each serve more images a second than
    one run with all threads; but an image that is alone is answered soonest by all of
    them. So a CPU engine has two lanes: single-threaded sessions that the workers share,
    and, where there is more than one thread, sessions with all threads for a lone image.
    A GPU engine has one lane and one worker.

    Attributes:
        device: where it runs.
        provider: ONNX Runtime's name of what runs it.
        precision: variant of the graphs.
        max_batch_size: most images in one run.
        workers: runs that are worth having at the same time.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: Device,
        precision: Precision,
        max_batch_size: int,
        threads: int,
    ) -> None:
        """Opens and checks the sessions; `open_engine` is what to call."""
        self.device = device
        self.provider = PROVIDERS[device][0][0]
        self.precision = precision
        self.max_batch_size = max_batch_size or _DEFAULT_BATCH_SIZE[device]
        self.workers = threads if device == "cpu" else 1
        self._image_shape = (bundle.card.input.height, bundle.card.input.width, 3)
        self._num_labels = bundle.card.trained_head.num_labels
        self._shared = _open_lane(bundle, device, precision, 1 if device == "cpu" else threads)
        self._wide = self._shared
        if self.workers > 1:
            self._wide = _open_lane(bundle, device, precision, threads)
        self._check()

    def run(self, images: PixelArray, *, alone: bool = False) -> LogitsArray:
        """Runs one batch.

        Args:
            images: uint8 [B, H, W, 3], RGB.
            alone: nothing else runs, so a single image may use every thread.

        Returns:
            Logits of the trained labels, float32 [B, N]; a row does not depend on the
            other rows.

        Raises:
            OutOfMemory: the device or the machine has too little memory for the batch.
            InferenceFailed: ONNX Runtime failed for another reason.
        """
        lane = self._wide if alone and len(images) == 1 else self._shared
        try:
            return lane.score_trained(lane.encode(images))
        except Exception as error:
            # ONNX Runtime's exceptions have no common base, and memory has none of them.
            text = str(error).lower()
            if isinstance(error, MemoryError) or any(s in text for s in _OUT_OF_MEMORY_SIGNS):
                raise OutOfMemory(f"no memory for a batch of {len(images)}") from error
            raise InferenceFailed(f"a batch of {len(images)} failed") from error

    def warm_up(self) -> None:
        """Runs every batch size once, so that no request pays for a first run.

        Raises:
            BundleError: the graphs do not run, or give logits of a wrong shape.
            StartError: the memory does not suffice for the largest batch.
        """
        # The extremes first: TensorRT builds for the range of sizes that it has seen.
        sizes = dict.fromkeys((1, self.max_batch_size, *range(1, self.max_batch_size)))
        for size, alone in [(1, True), *((size, False) for size in sizes)]:
            images = np.zeros((size, *self._image_shape), np.uint8)
            try:
                logits = self.run(images, alone=alone)
            except OutOfMemory as error:
                raise StartError(f"{error}: set a smaller max_batch_size") from error
            except InferenceFailed as error:
                raise BundleError(f"the graphs do not run: {error.__cause__}") from error
            if logits.shape != (size, self._num_labels):
                raise BundleError(
                    f"{size} images gave logits of shape {list(logits.shape)},"
                    f" not [{size}, {self._num_labels}]"
                )

    def _check(self) -> None:
        encoder, head = self._shared.encoder, self._shared.trained_head
        check_tensor("encoder", encoder.get_inputs(), "images", "uint8", self._image_shape)
        check_tensor("encoder", encoder.get_outputs(), "tokens", "float", (None, None))
        width = encoder.get_outputs()[0].shape[-1]
        token_shape = (None, width if isinstance(width, int) else None)
        check_tensor("trained_head", head.get_inputs(), "tokens", "float", token_shape)
        check_tensor("trained_head", head.get_outputs(), "logits", "float", (self._num_labels,))


def open_engine(
    bundle: Bundle,
    *,
    device: Literal["auto"] | Device = "auto",
    precision: Literal["auto"] | Precision = "auto",
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
    open_on = partial(
        _open_on, bundle, precision=precision, max_batch_size=max_batch_size, threads=threads
    )
    if device != "auto":
        return open_on(device)
    try:
        return open_on("cuda")
    except StartError as error:
        _log.warning("device auto: %s; FALLING BACK to the CPU", error)
        return open_on("cpu")


def _open_on(
    bundle: Bundle,
    device: Device,
    *,
    precision: Literal["auto"] | Precision,
    max_batch_size: int,
    threads: int,
) -> Engine:
    provider = PROVIDERS[device][0][0]
    if provider not in ort.get_available_providers():
        raise StartError(f"device {device}: this ONNX Runtime is built without {provider}")
    if device != "cpu":
        ort.preload_dlls()  # CUDA and cuDNN that came as Python packages are found in no other way
    chosen = bundle.default_precision(device) if precision == "auto" else precision
    if chosen not in bundle.precisions():
        raise StartError(f"precision {chosen}: the bundle has {', '.join(bundle.precisions())}")
    return Engine(
        bundle, device=device, precision=chosen, max_batch_size=max_batch_size, threads=threads
    )


def _open_lane(bundle: Bundle, device: Device, precision: Precision, threads: int) -> _Lane:
    return _Lane(
        encoder=open_session(bundle, "encoder", device, precision, threads),
        trained_head=open_session(bundle, "trained_head", device, precision, threads),
    )
