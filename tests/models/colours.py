"""Photos of coloured squares, and what the tests of every training share."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from models.train.run import Run

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 230)}


def write_colours(
    folder: Path, counts: Mapping[str, int], label_names: Sequence[str], *, move: bool
) -> Path:
    """Writes `counts` photos a split, with up to three colours on grey, which captions name."""
    (folder / "images").mkdir()
    stream, images = np.random.default_rng(0), {}
    for i, split in enumerate(split for split, count in counts.items() for _ in range(count)):
        present = [name for name in COLOURS if stream.random() < 0.5]
        picture = stream.integers(90, 130, (40, 40, 3)).astype(np.uint8)
        for column, name in enumerate(COLOURS):
            if name in present:
                top, height = (int(stream.integers(0, 26)), 14) if move else (5, 20)
                picture[top : top + height, 13 * column : 13 * column + 13] = COLOURS[name]
        Image.fromarray(picture).save(folder / "images" / f"{i:03d}.png")
        images[f"{i:03d}.png"] = {
            "split": split,
            "labels": [name for name in present if name in label_names],
            "caption_concepts": [*present, "grey", "large (size)", "dark circle"],
            "caption": f"A photo with {' and '.join(present)} squares." if present else "",
        }
    index = {"name": "colours", "label_names": list(label_names), "images": images}
    (folder / "labels.json").write_text(json.dumps(index))
    return folder


def read_log(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def read_losses(run: Path) -> list[float]:
    return [float(row["loss"]) for row in read_log(run)]


class Stopped(Exception):
    """Ends a run at a chosen place."""


@contextmanager
def stop_in_second_epoch() -> Iterator[None]:
    real_epoch = Run._train_epoch

    def stop(run: Run[Any]) -> dict[str, float]:
        if run.epoch == 1:
            raise Stopped
        return real_epoch(run)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Run, "_train_epoch", stop)
        with pytest.raises(Stopped):
            yield
