"""Runs share a cache: one run fills each file, the others wait."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from models.data.records import LabelledImage
from models.train import cache
from models.train.cache import cache_outputs
from models.train.views import Photos

COUNT = 20


class Gate(nn.Module):
    """Returns ones; waits for `open` before the second batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0
        self.reached, self.open = threading.Event(), threading.Event()

    def forward(self, images: Tensor) -> Tensor:
        self.batches += 1
        if self.batches == 2:
            self.reached.set()
            assert self.open.wait(30)
        return torch.ones(len(images), 4)


@pytest.fixture
def photos(tmp_path: Path) -> Photos:
    """Black photos without labels."""
    Image.new("RGB", (4, 4)).save(tmp_path / "1.png")
    images = (LabelledImage(tmp_path / "1.png", "train", ()),) * COUNT
    return Photos(images, torch.zeros(COUNT, 1), lambda _: torch.zeros(3, 4, 4))


def compute(module: nn.Module, photos: Photos, path: Path) -> np.ndarray:
    (features,) = cache_outputs(lambda x: (module(x),), photos, [photos.transform], [path], 0)
    return np.array(features)


def test_run_waits_while_another_run_fills_the_cache(
    photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = queue.SimpleQueue[str]()
    monkeypatch.setattr(cache.tqdm, "write", lambda text, **_: said.put(text))
    path = tmp_path / "cache" / "features.npy"
    path.parent.mkdir()
    first, second = Gate(), Gate()
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(compute, first, photos, path)]
        assert first.reached.wait(30)
        runs.append(threads.submit(compute, second, photos, path))
        assert said.get(timeout=30) == "waiting for another run to fill features.npy"
        first.open.set()
    assert second.batches == 0
    for run in runs:
        np.testing.assert_array_equal(run.result(), np.ones((1, COUNT, 4)))
    assert [file.name for file in path.parent.iterdir()] == ["features.npy"]


def test_files_of_a_killed_run_are_computed_again(photos: Photos, tmp_path: Path) -> None:
    gate, path = Gate(), tmp_path / "features.npy"
    gate.open.set()
    path.with_suffix(".lock").touch()
    path.with_suffix(".part").write_bytes(b"half")
    assert compute(gate, photos, path).all()
