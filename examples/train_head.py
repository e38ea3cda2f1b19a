"""Trains a small ML-Decoder head on a labelled folder, and exports it to a bundle.

python examples/train_head.py FOLDER

Without a network: it paints its own photos, and a package has the backbone's weights. FOLDER gets
`data`, `run` and `bundle`. Then: ml-decoder predict --bundle FOLDER/bundle FOLDER/data/images
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from PIL import Image

from export.__main__ import main as export
from models.train.__main__ import main as train

COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (40, 60, 230)}
SIZE = 64
# Flags of `python -m models.train`; without --frozen-stages 99 the backbone would be trained too.
RECIPE = {
    "frozen-stages": 99,
    "views": 2,
    "image-size": SIZE,
    "decoder-width": 64,
    "num-heads": 4,
    "feedforward-width": 128,
    "epochs": 6,
    "batch-size": 16,
    "lr": 5e-3,
    "workers": 0,
}


def paint(path: Path, labels: list[str], seed: int) -> None:
    """Writes a grey photo with a square for each of its labels."""
    rng = random.Random(seed)
    picture = Image.new("RGB", (SIZE, SIZE), (rng.randrange(90, 160),) * 3)
    for label in labels:
        x, y = rng.randrange(SIZE - 24), rng.randrange(SIZE - 24)
        picture.paste(COLOURS[label], (x, y, x + 24, y + 24))
    picture.save(path)


def write_folder(folder: Path, count: int = 96) -> None:
    """Writes a labelled folder: `images/`, and `labels.json` with the splits."""
    (folder / "images").mkdir(parents=True)
    images = {}
    for i in range(count):
        labels = [name for bit, name in enumerate(COLOURS) if (i % 7 + 1) >> bit & 1]
        paint(folder / "images" / f"{i}.png", labels, seed=i)
        split = ("val", "test", "train", "train", "train")[i % 5]
        images[f"{i}.png"] = {"split": split, "labels": labels}
    listing = {"name": "squares", "label_names": list(COLOURS), "images": images}
    (folder / "labels.json").write_text(json.dumps(listing))


def main(folder: Path) -> Path:
    """Returns the folder of the bundle."""
    data, run, bundle = (folder / name for name in ("data", "run", "bundle"))
    write_folder(data)
    flags = [part for name, value in RECIPE.items() for part in (f"--{name}", str(value))]
    code = train(["--data", str(data), "--out", str(run), "--device", "cpu", *flags])
    checkpoint = ("--checkpoint", str(run / "model.safetensors"), "--precision", "fp32")
    code = code or export([*checkpoint, "--photos", str(data), "--out", str(bundle)])
    if code:
        sys.exit(code)
    return bundle


if __name__ == "__main__":
    main(Path(sys.argv[1]))
