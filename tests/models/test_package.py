"""What `import models` gives and costs."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import models
from models.checkpoints.checkpoint import write_checkpoint
from models.network import Network
from tests.export.tiny_network import INPUT, LABELS, make_network


def test_load_checkpoint_is_public_and_importing_the_package_imports_no_torch(
    tmp_path: Path,
) -> None:
    network = make_network()
    write_checkpoint(tmp_path / "own.safetensors", network, LABELS, {})
    images = torch.rand(1, 3, INPUT.height, INPUT.width)
    with pytest.raises(models.CheckpointError, match="no checkpoint file at"):
        models.load_checkpoint(tmp_path / "gone.safetensors")
    loaded = models.load_checkpoint(tmp_path / "own.safetensors")
    assert isinstance(loaded, Network)
    with torch.inference_mode():
        torch.testing.assert_close(loaded(images), network(images))
    assert not hasattr(models, "load_bundle")
    check = "import sys, models; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
