"""What `import models` gives and costs."""

import subprocess
import sys
from pathlib import Path

import pytest

import models
from models.checkpoints.checkpoint import write_checkpoint
from models.network import Network
from tests.export.tiny_network import LABELS, make_network


def test_load_checkpoint_is_public_and_importing_the_package_imports_no_torch(
    tmp_path: Path,
) -> None:
    write_checkpoint(tmp_path / "own.safetensors", make_network(), LABELS, {})
    with pytest.raises(models.CheckpointError, match="no checkpoint file at"):
        models.load_checkpoint(tmp_path / "gone.safetensors")
    assert isinstance(models.load_checkpoint(tmp_path / "own.safetensors"), Network)
    assert not hasattr(models, "load_bundle")
    check = "import sys, models; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
