"""Small data sets in the layouts of the recipes."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

COLOURS = {"blue": (30, 30, 230), "green": (30, 200, 30), "red": (220, 30, 30)}


@dataclass(frozen=True)
class Picture:
    """A picture and the labels that it has, at least one."""

    labels: tuple[str, ...]
    pixels: Image.Image


@dataclass(frozen=True)
class Pictures:
    """The pictures of every layout; `names` are all labels, sorted."""

    names: tuple[str, ...]
    train: Sequence[Picture]
    val: Sequence[Picture]


def paint_pictures(train: int = 64, val: int = 16) -> Pictures:
    """Makes grey noise with a coloured block for each label, in random company."""

    def make(count: int) -> Iterator[Picture]:
        rng = np.random.default_rng(0)
        for seed in range(count):
            present = tuple(name for name in COLOURS if rng.random() < 0.5) or ("red",)
            yield Picture(present, _paint(present, seed))

    return Pictures(tuple(COLOURS), tuple(make(train)), tuple(make(val)))


def _paint(present: tuple[str, ...], seed: int) -> Image.Image:
    picture = np.random.default_rng(seed).integers(90, 130, (40, 40, 3)).astype(np.uint8)
    for column, name in enumerate(COLOURS):
        if name in present:
            picture[10:30, 13 * column : 13 * column + 13] = COLOURS[name]
    return Image.fromarray(picture)


def write_coco(folder: Path, pictures: Pictures) -> None:
    """Writes MS-COCO's layout."""
    ids = {name: i for i, name in enumerate(pictures.names)}
    for split, chosen in (("train2014", pictures.train), ("val2014", pictures.val)):
        for i, picture in enumerate(chosen):
            _save(picture, folder / split / f"{i}.png")
        index = {
            "categories": [{"id": i, "name": name} for name, i in ids.items()],
            "images": [{"id": i, "file_name": f"{i}.png"} for i in range(len(chosen))],
            "annotations": [
                {"image_id": i, "category_id": ids[name]}
                for i, picture in enumerate(chosen)
                for name in picture.labels
            ],
        }
        path = folder / "annotations" / f"instances_{split}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(index))


def write_nus_wide(folder: Path, pictures: Pictures) -> None:
    """Writes the authors' NUS-WIDE, the last label unseen, with a word vector a label."""
    rows = ["filepath,label,split_name"]
    for split, chosen in (("train", pictures.train), ("val", pictures.val)):
        for i, picture in enumerate(chosen):
            _save(picture, folder / "images" / f"{split}{i}.png")
            rows.append(f'images/{split}{i}.png,"[{", ".join(picture.labels)}]",{split}')
    (folder / "data.csv").write_text("\n".join(rows))
    *seen, unseen = pictures.names
    classes = {"train class": seen, "test class": [unseen]}
    (folder / "benchmark_81_v0.json").write_text(json.dumps(classes))
    torch.save(torch.eye(len(pictures.names))[None], folder / "wordvec_array.pth")  # [1, E, N]


def write_classes(folder: Path, pictures: Pictures) -> None:
    """Writes ImageNet's folders, a picture in that of its first label."""
    for split, chosen in (("train", pictures.train), ("val", pictures.val)):
        for i, picture in enumerate(chosen):
            _save(picture, folder / split / picture.labels[0] / f"{i}.png")


def write_pairs(folder: Path, pictures: Pictures) -> None:
    """Writes Open Images' CSV files; a third of what is true is not said."""
    codes = {name: f"/m/{i}" for i, name in enumerate(pictures.names)}
    with (folder / "class-descriptions-boxable.csv").open("w", newline="") as file:
        csv.writer(file).writerows((code, name) for name, code in codes.items())
    rng = np.random.default_rng(1)
    for split, chosen in (("train", pictures.train), ("validation", pictures.val)):
        rows = ["ImageID,Source,LabelName,Confidence"]
        for i, picture in enumerate(chosen):
            _save(picture, folder / split / f"{i}.jpg")
            said = [name for name in codes if rng.random() < 0.67] or [pictures.names[-1]]
            rows += [f"{i},verification,{codes[n]},{int(n in picture.labels)}" for n in said]
        (folder / f"{split}-annotations-human-imagelabels.csv").write_text("\n".join(rows))


def _save(picture: Picture, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.pixels.save(path)
