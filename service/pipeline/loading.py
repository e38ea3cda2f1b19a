"""Opens and warms up a bundle's graphs; `serve` imports label store and web framework meanwhile."""

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from service.bundle.reader import Bundle, load_bundle
from service.engine.engine import Engine, open_engine
from service.engine.shared_arrays import SharedArrays
from service.labels.encoders import LabelEncoders, open_label_encoder, open_text_encoder
from service.scheduling.cpu import count_cores
from service.settings import Settings

# A label is a few tokens long: more threads would wait for each other.
_MAX_ENCODING_THREADS = 4

# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Above the 6 MiB of a photo that a worker decodes, so that its memory is used again; below the
# 16 MiB of Pillow's blocks.
_MAPPED_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Graphs:
    """The open graphs of a bundle: a warm engine, and encoders if it has an open head."""

    bundle: Bundle
    engine: Engine
    encoders: LabelEncoders | None
    arrays: SharedArrays | None = None  # with other processes


def open_graphs(settings: Settings) -> Graphs:
    """Loads the bundle, opens engine and encoders at the same time, and warms the engine up.

    Raises `BundleError` if the bundle is unusable, `StartError` if a setting cannot be met.
    """
    _return_large_blocks()
    bundle = load_bundle(settings.bundle)
    with ThreadPoolExecutor(1, thread_name_prefix="open") as pool:
        opening = pool.submit(open_encoders, settings, bundle)
        engine = open_engine(
            bundle,
            device=settings.device,
            precision=settings.precision,
            max_batch_size=settings.max_batch_size,
            threads=settings.intra_op_threads or count_cores(),
            cuda_options=settings.cuda_options,
        )
        encoders = opening.result()
    engine.warm_up(None if encoders is None else encoders.make_blank)
    return Graphs(bundle, engine, encoders)


def open_encoders(settings: Settings, bundle: Bundle) -> LabelEncoders | None:
    """Opens the encoders of labels, if there is an open head; or raises `BundleError`."""
    threads = min(settings.intra_op_threads or count_cores(), _MAX_ENCODING_THREADS)
    labels = open_label_encoder(bundle, threads, screen=settings.screen)
    if (head := bundle.card.open_head) is None or labels is None:
        return None
    return LabelEncoders(
        head,
        labels,
        open_text_encoder(bundle, threads),
        trained_names=[label.name for label in bundle.labels],
        cache_size=settings.candidate_cache_size,
        queue_size=settings.queue_size,
    )


def _return_large_blocks() -> None:
    # By default glibc raises the first limit to 32 MiB: pixels of large photos stay in the heaps.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * _MAPPED_BYTES)
