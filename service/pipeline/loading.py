"""Opens and warms up the graphs of a bundle.

It imports neither label store nor web framework: `serve` opens the graphs while it imports those.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from service.bundle.reader import Bundle, load_bundle
from service.engine.engine import Engine, open_engine
from service.labels.encoding import Encoding, open_encoding
from service.scheduling.cpu import count_cores
from service.settings import Settings

# A label is a few tokens long: more threads would wait for each other.
_MAX_ENCODING_THREADS = 4


@dataclass(frozen=True)
class Graphs:
    """The open graphs of a bundle: a warm engine, and encoders if it has an open head."""

    bundle: Bundle
    engine: Engine
    encoding: Encoding | None


def open_graphs(settings: Settings) -> Graphs:
    """Loads the bundle, opens engine and encoders at the same time, and warms the engine up.

    Raises `BundleError` if the bundle is unusable, `StartError` if a setting cannot be met.
    """
    bundle = load_bundle(settings.bundle)
    with ThreadPoolExecutor(1, thread_name_prefix="open") as pool:
        opening = pool.submit(open_encoders, settings, bundle)
        engine = open_engine(
            bundle,
            device=settings.device,
            precision=settings.precision,
            max_batch_size=settings.max_batch_size,
            threads=settings.intra_op_threads or count_cores(),
        )
        encoding = opening.result()
    engine.warm_up(None if encoding is None else encoding.make_blank)
    return Graphs(bundle, engine, encoding)


def open_encoders(settings: Settings, bundle: Bundle) -> Encoding | None:
    """Opens the encoders of labels; None if the bundle has no open head."""
    return open_encoding(
        bundle,
        threads=min(settings.intra_op_threads or count_cores(), _MAX_ENCODING_THREADS),
        cache_size=settings.candidate_cache_size,
        queue_size=settings.queue_size,
        screen=settings.screen,
    )
