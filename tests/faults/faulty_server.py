"""The server, with an engine that fails on photos of some colours; logs `run images=N`.

A `HOLD` photo blocks its run, and logs `run holds`, until the file `FAULTS_HOLD` exists; the bundle
is not opened until `FAULTS_OPEN` exists, or for one worker `FAULTS_OPEN-NUMBER`. A run hangs after
`FAULTS_RUN_SECONDS`.
"""

import logging
import os
import signal
import time
from functools import partial
from multiprocessing import current_process
from typing import Any

from PIL import Image

from service.cli import __main__
from service.cli import serve as serving
from service.engine.engine import Engine
from service.errors import InferenceFailed, OutOfMemory
from service.pipeline import pipeline
from service.pipeline.loading import Graphs, open_graphs
from service.settings import Settings
from tests.support.photos import encode_picture

_TIMEOUT_SECONDS = 120.0
_COLOURS = {
    "FAIL": (255, 0, 0),
    "MEMORY": (0, 0, 255),
    "HOLD": (0, 255, 0),
    "LOSE": (255, 255, 0),
    "CRASH": (0, 255, 255),
}

logger = logging.getLogger("faults")


def make_fault(name: str) -> bytes:
    """Returns a photo for which the engine fails in one of the ways of `_COLOURS`.

    After `LOSE` the engine fails on every batch, as after the loss of a GPU.
    """
    return encode_picture(Image.new("RGB", (16, 16), _COLOURS[name]))


class FaultyEngine(Engine):
    """Fails on the photos of `make_fault`."""

    lost = False

    def run(self, images: Any, *args: Any, **options: Any) -> Any:
        logger.warning("run images=%d", len(images))
        colours = {tuple(int(value) for value in image[0, 0]) for image in images}
        if _COLOURS["FAIL"] in colours:
            raise ZeroDivisionError("secret of the engine")
        if _COLOURS["MEMORY"] in colours:
            raise OutOfMemory("secret of the engine")
        if _COLOURS["HOLD"] in colours:
            logger.warning("run holds")
            wait_for_file("FAULTS_HOLD")
        if _COLOURS["CRASH"] in colours:
            signal.raise_signal(signal.SIGSEGV)
        self.lost = self.lost or _COLOURS["LOSE"] in colours
        if self.lost:
            raise InferenceFailed("CUDA failure 700: an illegal memory access was encountered")
        return super().run(images, *args, **options)


def wait_for_file(variable: str) -> None:
    """Waits until the file that an environment variable names exists, or this worker's own."""
    path = os.environ.get(variable)
    own = f"{path}-{current_process().name.removeprefix('worker ')}"
    ends = time.monotonic() + _TIMEOUT_SECONDS
    while path and not any(map(os.path.exists, (path, own))) and time.monotonic() < ends:
        time.sleep(0.005)


def open_faulty(settings: Settings) -> Graphs:
    wait_for_file("FAULTS_OPEN")
    graphs = open_graphs(settings)
    graphs.engine.__class__ = FaultyEngine
    return graphs


if __name__ == "__main__":
    if "FAULTS_RUN_SECONDS" in os.environ:
        pipeline._MAX_CPU_RUN_SECONDS = float(os.environ["FAULTS_RUN_SECONDS"])
    serving.serve_model = partial(serving.serve_model, open_graphs=open_faulty)
    __main__.main()
