"""The server, with an engine that fails when a photo's colour tells it to.

In: the flags of `ml-decoder serve`; in `FAULTS_HOLD` and `FAULTS_OPEN` paths of files that do not
exist yet. Out: the real server; each run of the engine is a line `run images=N` on stderr. Until
the file `FAULTS_HOLD` is there, runs with a `HOLD` photo say `run holds` and stand still; until
`FAULTS_OPEN` is there, the bundle is not opened. A run hangs after `FAULTS_RUN_SECONDS`.
"""

import logging
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from service.cli import commands
from service.cli import serve as serving
from service.engine.engine import Engine
from service.errors import InferenceFailed, OutOfMemory
from service.pipeline import pipeline
from service.pipeline.loading import Graphs, open_graphs
from service.settings import Settings
from tests.support.photos import encode_picture

PATIENCE_SECONDS = 120.0
_COLOURS = {
    "FAIL": (255, 0, 0),
    "MEMORY": (0, 0, 255),
    "HOLD": (0, 255, 0),
    "DIE": (255, 0, 255),
    "LOSE": (255, 255, 0),
}

_log = logging.getLogger("faults")


def make_fault(name: str) -> bytes:
    """Returns a photo that makes the engine `FAIL`, run out of `MEMORY`, `HOLD` or `DIE`.

    `LOSE` costs it its device: it never runs anything again.
    """
    return encode_picture(Image.new("RGB", (16, 16), _COLOURS[name]))


class FaultyEngine(Engine):
    """Fails where a photo says so, and is itself otherwise."""

    lost = False

    def run(self, images: Any, *args: Any, **options: Any) -> Any:
        _log.warning("run images=%d", len(images))
        colours = {tuple(int(value) for value in image[0, 0]) for image in images}
        if _COLOURS["FAIL"] in colours:
            raise ZeroDivisionError("secret of the engine")
        if _COLOURS["MEMORY"] in colours:
            raise OutOfMemory("secret of the engine")
        if _COLOURS["HOLD"] in colours:
            _log.warning("run holds")
            wait_for_file("FAULTS_HOLD")
        if _COLOURS["DIE"] in colours:
            raise SystemExit  # which nothing but the end of its worker's thread catches
        self.lost = self.lost or _COLOURS["LOSE"] in colours
        if self.lost:
            raise InferenceFailed("CUDA failure 700: an illegal memory access was encountered")
        return super().run(images, *args, **options)


def wait_for_file(variable: str) -> None:
    """Returns as soon as the file that a variable of the environment names is there."""
    path = os.environ.get(variable)
    ends = time.monotonic() + PATIENCE_SECONDS
    while path and not Path(path).exists() and time.monotonic() < ends:
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
    commands.main()
