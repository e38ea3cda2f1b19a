"""Every shipped recipe, with a tiny backbone and few epochs, on a small set in its own layout.

Each checkpoint is measured, exported and served.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from fastapi.testclient import TestClient
from timm import get_pretrained_cfg
from timm.data.auto_augment import RandAugment

from export.__main__ import main as export
from models.backbones.backbone import Backbone, input_config
from models.checkpoints.checkpoint import read_checkpoint
from models.config import InputConfig
from models.evaluate import main as evaluate
from models.train.__main__ import main
from models.train.recipe import Recipe
from models.train.task import freeze_named
from models.train.views import training_transform
from service.bundle.reader import load_bundle
from tests.models.colours import read_losses
from tests.support.serving import labels_of, send_image, serve_app
from tests.support.small_datasets import (
    NAMES,
    write_classes,
    write_coco,
    write_nus_wide,
    write_pairs,
)

ROOT = Path(__file__).parents[3]
RECIPES = ROOT / "models" / "recipes"
TINY = [
    *("--workers", "0", "--decoder-width", "16", "--feedforward-width", "16", "--num-heads", "2"),
    *("--batch-size", "8", "--lr", "0.01", "--mixed-precision", "no", "--ema-decay", "0.8"),
    *("--warmup", "0.2", "--device", "cpu"),
    *("--backbone", "test_resnet", "--no-pretrained", "--image-size", "32"),
    *("--epochs", "4", "--backbone-lr", "0.01"),
]
TWO_GROUPS = ["--num-groups", "2"]
CASES: dict[str, tuple[Callable[[Path], None], list[str], str]] = {
    "coco_tresnet_l": (write_coco, [], "mAP"),
    "coco_query2label": (write_coco, [], "mAP"),
    "nus_wide_zero_shot": (write_nus_wide, ["--random-queries", "4"], "ZSL mAP"),
    "imagenet_resnet50": (write_classes, TWO_GROUPS, "top-1 accuracy"),
    # Partial labels and strong focusing leave little to learn from in an epoch.
    "open_images": (write_pairs, [*TWO_GROUPS, "--epochs", "16", "--cutout", "0.2"], "mAP"),
}


@pytest.mark.parametrize("name", CASES)
def test_recipe_lowers_the_loss_and_its_checkpoint_is_measured_and_served(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write, extra, figure = CASES[name]
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    write(data)
    recipe = ["--recipe", str(RECIPES / f"{name}.toml")]
    assert main([*recipe, "--data", str(data), "--out", str(run), *TINY, *extra]) == 0
    history = read_losses(run)
    assert history[-1] < history[0]
    checkpoint, bundle = run / "model.safetensors", tmp_path / "model"
    config = read_checkpoint(checkpoint).take_network().config
    assert config.head.kind == Recipe.read(RECIPES / f"{name}.toml", {}).head
    assert export(["--checkpoint", str(checkpoint), "--out", str(bundle)]) == 0
    measured = []
    for source in (["--checkpoint", str(checkpoint)], ["--bundle", str(bundle)]):
        capsys.readouterr()
        relevant = ["--relevant-photos"] if figure == "ZSL mAP" else []
        assert evaluate([*source, "--data", str(data), "--split", "val", *relevant]) == 0
        lines = capsys.readouterr().out.splitlines()
        measured.append(next(float(x[20:]) for x in lines if x[:20].strip() == figure))
    assert measured[0] == pytest.approx(measured[1], abs=0.5, nan_ok=True)
    with serve_app(bundle, label_store="memory") as client:
        assert_serves(client, bundle)


def assert_serves(client: TestClient, bundle: Path) -> None:
    params: dict[str, object] = {"top_k": len(NAMES)}
    loaded = load_bundle(bundle)
    if loaded.card.trained_head is None:
        labels = [
            {"name": name, "embedding": row.tolist()}
            for name, row in zip(NAMES, np.eye(len(NAMES)), strict=True)
        ]
        made = client.post("/labels", json={"name": "words", "labels": labels})
        assert made.status_code == 201, made.text
        params["label_set"] = "words"
    # A folder a class has none for a name that no photo has first.
    expected = {label.name for label in loaded.labels} or set(NAMES)
    assert 1 < len(expected) <= len(NAMES)
    assert {name for name, _ in labels_of(send_image(client, params=params))} == expected


def test_every_shipped_recipe_is_tested() -> None:
    # The default bundle's have test_train.py's options.
    others = {"lite0", "lite0_gap", "lite0_refine", "lite0_settle"}
    assert {path.stem for path in RECIPES.glob("*.toml")} - others == set(CASES)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_recipe_never_posterizes_to_0_bits(path: Path) -> None:
    transform: Any = training_transform(Recipe.read(path, {}), InputConfig(height=224, width=224))
    (policy,) = (step for step in transform.transforms if isinstance(step, RandAugment))
    for op in policy.ops:
        # From magnitude 10 on, timm's increasing posterize keeps 0 bits, which Pillow refuses.
        if op.name.startswith("Posterize"):
            strongest = op.magnitude_max or op.magnitude + 5 * op.magnitude_std
            assert op.level_fn(strongest, op.hparams)[0] > 0


def test_query2label_starts_from_torchvisions_weights_and_resizes_as_they_do() -> None:
    recipe = Recipe.read(RECIPES / "coco_query2label.toml", {})
    assert input_config(recipe.backbone).interpolation == "bilinear"
    assert "download.pytorch.org" in get_pretrained_cfg(recipe.backbone).url
    body = Backbone(recipe.backbone, (448, 448)).body
    freeze_named(body, recipe.frozen_names)
    trained = {name for name, parameter in body.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(re.match(r"layer[234]\.\d+\.(conv\d|downsample\.0)\.weight", n) for n in trained)


def test_accumulated_batches_take_fewer_steps_and_lower_the_loss(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_pairs(data)
    arguments = ["--data", str(data), *TINY, "--frozen-stages", "0", "--accumulate", "3"]
    AcceleratorState._reset_state(reset_partial_state=True)  # another precision than before
    try:
        assert main([*arguments, "--mixed-precision", "bf16", "--out", str(tmp_path / "run")]) == 0
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    history = read_losses(tmp_path / "run")
    assert history[-1] < history[0]
    state = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    assert state["schedule"]["last_epoch"] == 4 * 3  # 8 batches an epoch: 3 + 3 + 2
