"""Prometheus metrics of this process, or of all that share `PROMETHEUS_MULTIPROC_DIR`."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import prometheus_client as prometheus
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from service.errors import StartError
from service.http.responses.problems import METHODS
from service.pipeline.served import ServedPipeline, describe
from service.stages import Stage

PREFIX = "ml_decoder"
SAMPLE_SECONDS = 0.5
_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
SECONDS_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

CLIENT_LEFT = 499
"""Status of a request whose client left before the answer, as proxies log it."""

logger = logging.getLogger(__name__)


class Metrics:
    """The metrics of an app; of several processes, queues are summed, the worst state counts."""

    def __init__(self) -> None:
        folder = os.environ.get(_FOLDER_VARIABLE)
        if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
            raise StartError(
                f"{_FOLDER_VARIABLE} must be an existing, writable folder; it is {folder}"
            )
        # Else each counter and histogram would have a series of creation times.
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self.registry = prometheus.CollectorRegistry()
        counter = partial(prometheus.Counter, namespace=PREFIX, registry=registry)
        gauge = partial(prometheus.Gauge, namespace=PREFIX, registry=registry)
        histogram = partial(prometheus.Histogram, namespace=PREFIX, registry=registry)
        seconds = partial(histogram, buckets=SECONDS_BUCKETS)
        labels = ("method", "path", "status")
        text = "HTTP requests, until the answer is sent, seconds"
        self._requests = seconds("request_seconds", text, labels)
        text = "Decoding of a photo, with the wait for a thread, seconds"
        self._decode = seconds("decode_seconds", text)
        self._queue = seconds("queue_seconds", "Wait of a photo for the engine, seconds")
        text = "Runs of the engine, one for a batch, seconds"
        self._inference = seconds("inference_seconds", text)
        self._batch_size = histogram("batch_size", "Images in a run", buckets=SIZE_BUCKETS)
        self._rejected = counter("rejected", "Requests refused or failed", ["reason"])
        self._disconnects = counter("disconnects", "Clients that left early")
        self.reloads = counter("reloads", "Reloads by SIGHUP", ["outcome"])
        modes = ("livesum", "livemin", "livemax")
        total, worst, best = (partial(gauge, multiprocess_mode=mode) for mode in modes)
        self.in_flight = total("requests_in_flight", "HTTP requests now")
        self._queue_size = total("queue_size", "Photos that wait now")
        self._ready = worst("ready", "Whether predictions are answered")
        runs = ("model", "version", "device", "provider", "precision")
        self._model_info = best("model_info", "The model and its device", runs)
        self._runs: dict[str, str] = {}
        self._label_sets = best("label_sets", "Label sets", ["origin"])
        self._labels = best("labels", "Labels of all sets", ["origin"])
        self._set_version = worst("label_set_version", "Version of the label store that is served")
        self._store_up = worst("label_store_up", "Whether the store answers")

    def count_request(
        self, method: str, path: str, status: int, seconds: float, problem: str | None
    ) -> None:
        """Counts a request that has ended; `path` is its route's template, or empty."""
        known = method if method in METHODS else "other"  # clients may send any word
        self._requests.labels(known, path, status).observe(seconds)
        if status == CLIENT_LEFT:
            self._disconnects.inc()
        if problem is not None:
            self._rejected.labels(problem).inc()

    def on_batch(self, size: int, seconds: float) -> None:
        """Counts a run of the engine."""
        self._batch_size.observe(size)
        self._inference.observe(seconds)

    def on_prediction(self, stages: Sequence[Stage], batch_size: int) -> None:  # noqa: ARG002
        """Counts a predicted photo."""
        for stage in stages:
            if stage.name == "queue":
                self._queue.observe(stage.seconds)
            elif stage.name == "decode":
                self._decode.observe(stage.seconds)

    def sample(self, served: ServedPipeline) -> None:
        """Sets the gauges."""
        self._ready.set(served.ready)
        pipeline = served.opened
        self._queue_size.set(0 if pipeline is None else pipeline.queue.places_taken)
        if pipeline is None:
            return
        earlier, self._runs = self._runs, describe(pipeline)
        if earlier not in ({}, self._runs):  # after a reload
            self._model_info.labels(**earlier).set(0)  # the files of workers keep each series
        self._model_info.labels(**self._runs).set(1)
        catalogue = pipeline.catalogue
        sets, labels = Counter[str](), Counter[str]()
        for label_set in catalogue.list_sets():
            sets[label_set.origin] += 1
            labels[label_set.origin] += len(label_set.names)
        for origin in ("model", "bundle", "folder", "store"):
            self._label_sets.labels(origin).set(sets[origin])
            self._labels.labels(origin).set(labels[origin])
        self._set_version.set(catalogue.store_revision)
        self._store_up.set(catalogue.store_answers)


def open_registry(metrics: Metrics) -> prometheus.CollectorRegistry:
    """Returns the registry to expose: of this process, or of all that share the folder."""
    folder = os.environ.get(_FOLDER_VARIABLE)
    if folder is None:
        # With several processes, these would describe only the one that answers.
        prometheus.ProcessCollector(registry=metrics.registry)
        prometheus.PlatformCollector(registry=metrics.registry)
        prometheus.GCCollector(registry=metrics.registry)
        return metrics.registry
    registry = prometheus.CollectorRegistry()
    MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
    return registry


async def keep_sampling(metrics: Metrics, served: ServedPipeline) -> None:
    """Samples the metrics until it is cancelled."""
    while True:
        try:
            metrics.sample(served)
            _mark_dead_processes()
        except Exception:
            logger.exception("sampling the metrics failed")
        await asyncio.sleep(SAMPLE_SECONDS)


def _mark_dead_processes() -> None:
    folder = os.environ.get(_FOLDER_VARIABLE)
    if folder is None:
        return
    for file in Path(folder).glob("gauge_live*_*.db"):
        process = file.stem.rpartition("_")[2]
        if process.isdecimal():
            try:
                os.kill(int(process), 0)
            except PermissionError:  # alive, of another user
                continue
            except OSError:
                with suppress(FileNotFoundError):  # another worker did it first
                    mark_process_dead(process, folder)  # type: ignore[no-untyped-call]
