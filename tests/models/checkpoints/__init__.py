from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint, write_checkpoint
from models.checkpoints.description import NO_HINTS, CheckpointError, Hints
from models.config import NetworkConfig


def save(content: object, folder: Path) -> Path:
    """Writes what a training script stores; returns the file."""
    torch.save(content, folder / "model.pth")
    return folder / "model.pth"


def write_own(network: nn.Module, folder: Path) -> Path:
    """Writes our own file of a network, without labels; returns it."""
    write_checkpoint(folder / "own.safetensors", network, (), {})
    return folder / "own.safetensors"


def read_config(path: Path | str, hints: Hints = NO_HINTS) -> NetworkConfig:
    """Reads the configuration of a checkpoint that has a backbone."""
    return read_checkpoint(path, hints).take_network().config


@torch.inference_mode()
def assert_gives(
    checkpoint: Path | str | nn.Module, inputs: Tensor, expected: Tensor, **hints: Any
) -> None:
    """Compares the logits of a checkpoint's network with the expected ones."""
    if not isinstance(checkpoint, nn.Module):
        checkpoint = load_checkpoint(checkpoint, **hints)
    # What float32 sums round against.
    limit = 1e-5 * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(checkpoint(inputs), expected, rtol=1.3e-6, atol=limit)


def assert_refused(
    checkpoint: Path | str, reason: str, read: Callable[..., object] = load_checkpoint, **hints: Any
) -> None:
    """Reads a checkpoint that is refused in one line, in which the pattern `reason` is found."""
    with pytest.raises(CheckpointError, match=reason) as refused:
        read(checkpoint, **hints)
    assert "\n" not in str(refused.value)
