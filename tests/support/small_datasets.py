"""Small painted data sets in the layouts of the recipes."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

COLOURS = {"blue": (30, 30, 230), "green": (30, 200, 30), "red": (220, 30, 30)}
NAMES = tuple(COLOURS)
Picture = tuple[tuple[str, ...], Image.Image]
"""At least one label, and grey noise with a coloured block for each."""


def paint_pictures(count: int) -> Iterator[Picture]:
    rng = np.random.default_rng(0)
    for seed in range(count):
        present = tuple(name for name in COLOURS if rng.random() < 0.5) or ("red",)
        pixels = np.random.default_rng(seed).integers(90, 130, (40, 40, 3)).astype(np.uint8)
        for column, name in enumerate(COLOURS):
            if name in present:
                pixels[10:30, 13 * column : 13 * column + 13] = COLOURS[name]
        yield present, Image.fromarray(pixels)


TRAIN, VAL = list(paint_pictures(64)), list(paint_pictures(16))


def write_coco(folder: Path) -> None:
    """Writes MS-COCO's layout."""
    for split, chosen in (("train2014", TRAIN), ("val2014", VAL)):
        for i, (_, picture) in enumerate(chosen):
            _save(picture, folder / split / f"{i}.png")
        index = {
            "categories": [{"id": i, "name": name} for i, name in enumerate(NAMES)],
            "images": [{"id": i, "file_name": f"{i}.png"} for i in range(len(chosen))],
            "annotations": [
                {"image_id": i, "category_id": NAMES.index(name)}
                for i, (labels, _) in enumerate(chosen)
                for name in labels
            ],
        }
        path = folder / "annotations" / f"instances_{split}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(index))


def write_nus_wide(folder: Path) -> None:
    """Writes the authors' NUS-WIDE, the last label unseen, with a word vector a label."""
    rows = ["filepath,label,split_name"]
    for split, chosen in (("train", TRAIN), ("val", VAL)):
        for i, (labels, picture) in enumerate(chosen):
            _save(picture, folder / "images" / f"{split}{i}.png")
            rows.append(f'images/{split}{i}.png,"[{", ".join(labels)}]",{split}')
    (folder / "data.csv").write_text("\n".join(rows))
    classes = {"train class": NAMES[:-1], "test class": NAMES[-1:]}
    (folder / "benchmark_81_v0.json").write_text(json.dumps(classes))
    torch.save(torch.eye(len(NAMES))[None], folder / "wordvec_array.pth")  # [1, E, N]


def write_classes(folder: Path) -> None:
    """Writes ImageNet's folders, a picture in that of its first label."""
    for split, chosen in (("train", TRAIN), ("val", VAL)):
        for i, (labels, picture) in enumerate(chosen):
            _save(picture, folder / split / labels[0] / f"{i}.png")


def write_pairs(folder: Path) -> None:
    """Writes Open Images' CSV files; a third of what is true is not said."""
    codes = {name: f"/m/{i}" for i, name in enumerate(NAMES)}
    with (folder / "class-descriptions-boxable.csv").open("w", newline="") as file:
        csv.writer(file).writerows((code, name) for name, code in codes.items())
    rng = np.random.default_rng(1)
    for split, chosen in (("train", TRAIN), ("validation", VAL)):
        rows = ["ImageID,Source,LabelName,Confidence"]
        for i, (labels, picture) in enumerate(chosen):
            _save(picture, folder / split / f"{i}.jpg")
            said = [name for name in codes if rng.random() < 0.67] or [NAMES[-1]]
            rows += [f"{i},verification,{codes[name]},{int(name in labels)}" for name in said]
        (folder / f"{split}-annotations-human-imagelabels.csv").write_text("\n".join(rows))


def _save(picture: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)
