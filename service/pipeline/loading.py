"""The graphs of a bundle, opened and warm: all that a pipeline computes with.

In: settings. Out: `Graphs`: the verified bundle, the engine for images, the encoders for labels.
It needs neither the label store nor the web framework, so that a start opens it while those are
imported. Next: `pipeline.py`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from service.bundle.reader import Bundle, load_bundle
from service.engine.engine import Engine, open_engine
from service.labels.encoding import Encoding, open_encoding
from service.scheduling.cpu import count_cores
from service.settings import Settings

# A label text is a few tokens long: more threads would only wait for each other.
_MOST_ENCODING_THREADS = 4


@dataclass(frozen=True)
class Graphs:
    """What is open of a bundle.

    Attributes:
        bundle: the model that is served.
        engine: what runs images, warmed up.
        encoding: what makes queries of labels; None where the bundle has no open head.
    """

    bundle: Bundle
    engine: Engine
    encoding: Encoding | None


def open_graphs(settings: Settings) -> Graphs:
    """Loads the bundle, opens engine and encoders at the same time, and warms the engine up.

    Raises:
        BundleError: the bundle is absent, damaged or inconsistent.
        StartError: what the settings ask for is not there.
    """
    bundle = load_bundle(settings.bundle)
    with ThreadPoolExecutor(1, thread_name_prefix="open") as beside:
        opening = beside.submit(open_encoders, settings, bundle)
        engine = open_engine(
            bundle,
            device=settings.device,
            precision=settings.precision,
            max_batch_size=settings.max_batch_size,
            threads=settings.intra_op_threads or count_cores(),
        )
        encoding = opening.result()
    engine.warm_up(None if encoding is None else encoding.query_width)
    return Graphs(bundle, engine, encoding)


def open_encoders(settings: Settings, bundle: Bundle) -> Encoding | None:
    """Opens the encoders for labels; None where the bundle has no open head.

    Raises:
        BundleError: a graph or the tokenizer cannot be used.
    """
    threads = min(settings.intra_op_threads or count_cores(), _MOST_ENCODING_THREADS)
    return open_encoding(
        bundle,
        threads=threads,
        remembered=settings.candidate_cache_size,
        queue_size=settings.queue_size,
    )
