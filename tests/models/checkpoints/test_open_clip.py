"""CLIP and SigLIP of open_clip: recorded logits of its own code (version 3.3.0)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer

from models.checkpoints.clip import read_clip
from models.checkpoints.description import Hints
from tests.goldens import FOLDER
from tests.models.checkpoints import assert_refused
from tests.models.tiny_towers import KINDS, write_towers


@register_model
def vit_tiny_siglip_golden(img_size: int = 24, num_classes: int = 0, **_: Any) -> VisionTransformer:
    """The image tower of the recorded SigLIP."""
    return VisionTransformer(
        img_size=img_size,
        patch_size=8,
        num_classes=num_classes,
        embed_dim=16,
        depth=2,
        num_heads=4,
        mlp_ratio=2.5,
        class_token=False,
        global_pool="map",
    )


def write(folder: Path, kind: str, *, pickled: bool = False, **changes: Any) -> dict[str, Any]:
    """Writes a recorded model in the folder; returns its images, token ids and logits."""
    write_towers(folder, kind)  # for its tokenizer, which has other numbers
    for name in ("config.json", "preprocessor_config.json", "model.safetensors"):
        (folder / name).unlink()
    with np.load(FOLDER / "open_clip" / f"{kind}.npz") as file:
        recorded = {key: torch.from_numpy(file[key]) for key in file.files if key != "config"}
        config = json.loads(str(file["config"]))
    for part, options in changes.items():
        (config | config["model_cfg"])[part].update(options)
    state = {k.removeprefix("state/"): v for k, v in recorded.items() if k.startswith("state/")}
    if pickled:  # as a training run stores it
        whole = {"epoch": 3, "state_dict": {f"module.{key}": v for key, v in state.items()}}
        torch.save(whole, folder / "open_clip_pytorch_model.bin")
    else:
        save_file(state, folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return recorded


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_open_clip(kind: str, tmp_path: Path, *, pickled: bool) -> None:
    golden = write(tmp_path / "tiny", kind, pickled=pickled)
    network, text = read_clip(tmp_path / "tiny")
    mask = (golden["ids"] != 0).long()
    with torch.inference_mode():
        logits = network(golden["images"], text.module(golden["ids"], mask))
    torch.testing.assert_close(logits, golden["logits"], atol=1e-4, rtol=0)
    assert network.config.activation == ("softmax" if kind == "clip" else "sigmoid")


@pytest.mark.parametrize(("kind", "mode"), [("clip", "crop"), ("siglip", "squash")])
def test_photos_are_prepared_as_the_file_says(kind: str, mode: str, tmp_path: Path) -> None:
    write(tmp_path / "tiny", kind)
    spec = read_clip(tmp_path / "tiny", Hints(crop=mode == "crop"))[0].config.input
    assert (spec.mean, spec.std) == ((0.5, 0.4, 0.3), (0.5, 0.5, 0.6))
    assert (spec.height, spec.resize_mode, spec.interpolation) == (24, mode, "bicubic")


def test_punctuation_is_removed_as_the_file_says(tmp_path: Path) -> None:
    write(tmp_path / "tiny", "siglip")
    _, text = read_clip(tmp_path / "tiny")
    some, same = text.tokenize(["A photo, of cats."])[0], text.tokenize(["a photo of cats"])[0]
    assert some.tolist() == same.tolist()


@pytest.mark.parametrize(
    ("kind", "part", "options", "reason"),
    [
        ("clip", "vision_cfg", {"attentional_pool": True}, "option attentional_pool of vision_cfg"),
        ("clip", "text_cfg", {"hf_model_name": "roberta"}, "option hf_model_name of text_cfg"),
        ("clip", "vision_cfg", {"layers": [3, 4, 6, 3]}, "neither CLIP nor SigLIP"),
        ("clip", "text_cfg", {"pool_type": "last"}, "neither CLIP nor SigLIP"),
        ("clip", "vision_cfg", {"layers": 3}, "Missing.*vision_model.encoder.layers.2"),
        ("siglip", "vision_cfg", {"timm_pool": "avg"}, "neither CLIP nor SigLIP"),
        ("siglip", "vision_cfg", {"timm_model_name": "none"}, "neither CLIP nor SigLIP"),
        ("siglip", "vision_cfg", {"timm_model_name": "hf-hub:a/b"}, "neither CLIP nor SigLIP"),
        ("siglip", "text_cfg", {"no_causal_mask": False}, "neither CLIP nor SigLIP"),
        ("siglip", "text_cfg", {"act_kwargs": {"x": 1}}, "neither CLIP nor SigLIP"),
        ("siglip", "preprocess_cfg", {"resize_mode": "longest"}, "preprocess_cfg"),
    ],
)
def test_other_model_is_refused(
    tmp_path: Path, kind: str, part: str, options: dict[str, Any], reason: str
) -> None:
    write(tmp_path / "tiny", kind, **{part: options})
    assert_refused(tmp_path / "tiny", reason, read_clip)
