"""Checkpoints of timm's own `add_ml_decoder_head` and of its training script."""

import argparse
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from timm.layers.ml_decoder import MLDecoder, add_ml_decoder_head
from torch import Tensor, nn

from models.checkpoints import load_checkpoint, read_checkpoint
from models.layouts import CheckpointError


def compute(head: MLDecoder, features: Tensor) -> Tensor:
    """What timm's forward pass computes; its own needs a torch older than 2.1."""
    tokens = head.embed_standart(features.flatten(2).mT).relu()
    queries = head.query_embed.weight.unsqueeze(1).expand(-1, len(tokens), -1)
    decoded = head.decoder.layers[0](queries, tokens.transpose(0, 1)).transpose(0, 1)
    logits = (decoded.transpose(0, 1) @ head.duplicate_pooling).transpose(0, 1).flatten(1)
    return logits[:, : head.num_classes] + head.duplicate_pooling_bias


@pytest.mark.parametrize(("classes", "groups"), [(7, -1), (81, 20), (203, 100)])
def test_timms_head_is_read_under_its_own_names(classes: int, groups: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    head = MLDecoder(classes, groups, 64, 96).eval()
    torch.save(head.state_dict(), tmp_path / "head.pth")
    features = torch.rand(2, 96, 3, 4)
    with torch.inference_mode():
        found = load_checkpoint(tmp_path / "head.pth")(features)
        torch.testing.assert_close(found, compute(head, features))


def make_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return add_ml_decoder_head(timm.create_model(name, num_classes=5)).eval()


@pytest.mark.parametrize(
    ("name", "place"), [("test_resnet", "fc"), ("test_efficientnet", "classifier")]
)
def test_a_file_of_timms_training_script_needs_no_hints(
    name: str, place: str, tmp_path: Path
) -> None:
    model = make_model(name)
    averaged = {f"module.{key}": tensor for key, tensor in model.state_dict().items()}
    content = {
        "epoch": 3,
        "arch": name,
        "state_dict": {key: torch.zeros_like(tensor) for key, tensor in averaged.items()},
        "state_dict_ema": averaged,
        "args": argparse.Namespace(model=name, lr=1e-3),
        "metric": np.float64(76.5),
    }
    torch.save(content, tmp_path / "model_best.pth.tar")
    checkpoint = read_checkpoint(tmp_path / "model_best.pth.tar")
    assert checkpoint.config is not None
    assert checkpoint.config.backbone == name
    images = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        expected = compute(getattr(model, place), model.forward_features(images))
        torch.testing.assert_close(checkpoint.network(images), expected)


def test_without_it_the_flag_is_named_and_a_backbone_that_fits(tmp_path: Path) -> None:
    path = tmp_path / "bare.pth"
    torch.save(make_model("resnet18").state_dict(), path)
    with pytest.raises(CheckpointError, match=r"--backbone .*resnet18, whose tensors fit"):
        load_checkpoint(path)
    assert load_checkpoint(path, backbone="resnet18")
