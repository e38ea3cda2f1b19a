"""Every shipped recipe, run for real on a tiny set in its data set's own layout.

Backbone, sizes and epochs are made tiny; everything else is the recipe's own.
"""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from PIL import Image

from models.checkpoints import read_checkpoint
from models.data import read_labelled_folder
from models.evaluate import main as evaluate
from models.train.__main__ import main
from models.train.recipe import read_recipe

RECIPES = Path(__file__).parents[2] / "models" / "recipes"
COLOURS = {"blue": (30, 30, 230), "green": (30, 200, 30), "red": (220, 30, 30)}
TINY = [
    *("--backbone", "test_resnet", "--no-pretrained", "--image-size", "32", "--workers", "0"),
    *("--decoder-width", "16", "--feedforward-width", "16", "--num-heads", "2"),
    *("--batch-size", "8", "--epochs", "4", "--lr", "0.01", "--backbone-lr", "0.01"),
    *("--mixed-precision", "no", "--ema-decay", "0.8", "--warmup", "0.2", "--device", "cpu"),
]


def paint(path: Path, present: tuple[str, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    picture = rng.integers(90, 130, (40, 40, 3)).astype(np.uint8)
    for column, name in enumerate(COLOURS):
        if name in present:
            picture[10:30, 13 * column : 13 * column + 13] = COLOURS[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path)


def subsets(count: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    rng = np.random.default_rng(0)
    for i in range(count):
        yield i, tuple(name for name in COLOURS if rng.random() < 0.5) or ("red",)


def write_coco(folder: Path) -> None:
    ids = {name: i for i, name in enumerate(COLOURS)}
    for split, count in (("train2014", 64), ("val2014", 16)):
        images, annotations = [], []
        for i, present in subsets(count):
            paint(folder / split / f"{i}.png", present, i)
            images.append({"id": i, "file_name": f"{i}.png"})
            annotations += [{"image_id": i, "category_id": ids[name]} for name in present]
        index = {
            "categories": [{"id": i, "name": name} for name, i in ids.items()],
            "images": images,
            "annotations": annotations,
        }
        path = folder / "annotations" / f"instances_{split}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(index))


def write_nus_wide(folder: Path) -> None:
    rows = ["filepath,label,split_name"]
    for i, present in subsets(80):
        paint(folder / "images" / f"{i}.png", present, i)
        split = "train" if i < 64 else "val"
        rows.append(f'images/{i}.png,"[{", ".join(present)}]",{split}')
    (folder / "data.csv").write_text("\n".join(rows))
    classes = {"train class": ["blue", "green"], "test class": ["red"]}
    (folder / "benchmark_81_v0.json").write_text(json.dumps(classes))
    torch.save(torch.eye(3)[None], folder / "wordvec_array.pth")  # [1, E, N]


def write_classes(folder: Path) -> None:
    for i in range(80):
        name = tuple(COLOURS)[i % 3]
        paint(folder / ("train" if i < 60 else "val") / name / f"{i}.png", (name,), i)


def write_pairs(folder: Path) -> None:
    codes = {name: f"/m/{i}" for i, name in enumerate(COLOURS)}
    (folder / "class-descriptions-boxable.csv").write_text(
        "\n".join(f"{code},{name}" for name, code in codes.items())
    )
    rng = np.random.default_rng(1)
    for split, count in (("train", 64), ("validation", 16)):
        rows = ["ImageID,Source,LabelName,Confidence"]
        for i, present in subsets(count):
            paint(folder / split / f"{i}.jpg", present, i)
            # A third of what is true is not said.
            said = [name for name in COLOURS if rng.random() < 0.67] or ["red"]
            rows += [f"{i},verification,{codes[name]},{int(name in present)}" for name in said]
        (folder / f"{split}-annotations-human-imagelabels.csv").write_text("\n".join(rows))


def losses(run: Path) -> list[float]:
    with (run / "metrics.csv").open() as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


CASES: dict[str, tuple[Callable[[Path], None], list[str], str]] = {
    "coco_tresnet_l": (write_coco, [], "mAP"),
    "coco_query2label": (write_coco, [], "mAP"),
    "nus_wide_zero_shot": (write_nus_wide, ["--random-queries", "4"], "ZSL mAP"),
    "imagenet_resnet50": (write_classes, ["--num-groups", "2"], "top-1 accuracy"),
    "open_images": (write_pairs, ["--num-groups", "2"], "mAP"),
}


@pytest.mark.parametrize("name", CASES)
def test_recipe_lowers_the_loss_and_its_checkpoint_is_measured(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write, extra, figure = CASES[name]
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    write(data)
    recipe = ["--recipe", str(RECIPES / f"{name}.toml")]
    assert main([*recipe, "--data", str(data), "--out", str(run), *TINY, *extra]) == 0
    history = losses(run)
    assert len(history) == 4
    assert history[-1] < history[0]
    checkpoint = run / "model.safetensors"
    kind = read_recipe(RECIPES / f"{name}.toml", {}).head
    config = read_checkpoint(checkpoint).config
    assert config is not None
    assert config.head.kind == kind
    capsys.readouterr()
    arguments = ["--checkpoint", str(checkpoint), "--data", str(data), "--split", "val"]
    assert evaluate(arguments) == 0
    assert any(line.startswith(figure) for line in capsys.readouterr().out.splitlines())


def test_every_shipped_recipe_is_tested() -> None:
    others = {"lite0", "lite0_gap", "lite0_refine"}  # the default bundle's, in test_train.py
    assert {path.stem for path in RECIPES.glob("*.toml")} - others == set(CASES)


def test_accumulated_batches_take_fewer_steps_and_learn(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_pairs(data)
    arguments = ["--data", str(data), *TINY, "--frozen-stages", "0", "--accumulate", "3"]
    AcceleratorState._reset_state(reset_partial_state=True)  # another precision than before
    try:
        assert main([*arguments, "--mixed-precision", "bf16", "--out", str(tmp_path / "run")]) == 0
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    history = losses(tmp_path / "run")
    assert history[-1] < history[0]
    state = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    assert state["schedule"]["last_epoch"] == 4 * 3  # 8 batches an epoch: 3 + 3 + 2


def test_partial_labels_of_a_csv_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("image,label\na.jpg,cat\na.jpg,dog\nb.png,dog\n")
    (tmp_path / "test.csv").write_text("image,label,confidence\nc,cat,0\n")
    folder = read_labelled_folder(tmp_path)
    assert folder.label_names == ("cat", "dog")
    np.testing.assert_array_equal(folder.targets(folder.split("train")), [[1, 1], [-1, 1]])
    test = folder.split("test")
    np.testing.assert_array_equal(folder.targets(test), [[0, -1]])
    assert test[0].path == tmp_path / "images" / "c.jpg"
