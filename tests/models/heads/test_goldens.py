"""The authors' recorded logits, through checkpoint file and reader."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.checkpoints.checkpoint import load_checkpoint
from tests.goldens import Golden, golden_names, read_golden


def write_official(golden: Golden, path: Path, layout: str = "bare") -> Path:
    """Stores a case's weights the way the authors' code does."""
    state: dict[str, Any] = {k: torch.from_numpy(np.array(v)) for k, v in golden.state.items()}
    names = {i: f"class {i:04d}" for i in range(golden.expected.shape[1])}
    content: dict[str, dict[str, Any]] = {
        "bare": state,
        "model": {"model": state, "idx_to_class": names},
        "state_dict": {"state_dict": state},
        "state_dict+module": {
            "state_dict": {f"module.{k}": v for k, v in state.items()},
            "epoch": 1,
        },
        "ram": {"model": state, "optimizer": {}, "config": {}, "epoch": 0},
    }
    torch.save(content[layout], path)
    return path


def hints(golden: Golden) -> dict[str, Any]:
    """Returns the hints that the file of the case lacks."""
    if golden.kind == "tresnet_mldecoder":
        return {"image_size": golden.config["image_size"]}
    if golden.kind == "query2label_head":
        return {"num_heads": golden.config["nheads"], "pre_norm": golden.config["pre_norm"]}
    if golden.kind == "timm_mldecoder":
        return {"backbone": golden.config["timm_model"], "image_size": golden.config["image_size"]}
    return {}


def list_cases() -> list[Any]:
    """The cases' names; those of more than ten seconds are marked."""
    slow = golden_names("ram_plus_swin") + golden_names("ram_swin")
    return [
        pytest.param(name, marks=[pytest.mark.slow] * (name in slow)) for name in golden_names()
    ]


@pytest.mark.parametrize("name", list_cases())
def test_logits_equal_the_authors_within_the_recorded_tolerance(name: str, tmp_path: Path) -> None:
    golden = read_golden(name)
    layout = golden.config.get("checkpoint_layout", "bare")
    path = write_official(golden, tmp_path / "official.pth", layout)
    network = load_checkpoint(path, **hints(golden))
    with torch.inference_mode():
        logits = network(*map(torch.from_numpy, golden.inputs)).numpy()
    assert logits.shape == golden.expected.shape
    assert np.abs(logits - golden.expected).max() <= golden.tolerance
