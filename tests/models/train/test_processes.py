"""Two processes of one run share the photos, each with augmentations of its own."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from models.data.records import LabelledImage
from models.train.recipe import Recipe
from models.train.run import Run, RunFolder, make_accelerator
from models.train.task import LabelTask
from models.train.views import Photos

PHOTOS, BATCH = 16, 4


def add_noise(picture: Image.Image) -> Tensor:
    """Augments: the noise comes from the generator that timm's augmentations draw from."""
    pixels = torch.from_numpy(np.asarray(picture, np.float32) / 255).permute(2, 0, 1)
    return pixels + float(np.random.rand())


class PartlyUsed(torch.nn.Linear):
    """A network with a layer that gets no gradient, as in many of timm's backbones."""

    def __init__(self) -> None:
        super().__init__(3 * 4 * 4, PHOTOS)
        self.left_out = torch.nn.Linear(1, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        return super().forward(pixels.flatten(1))


def train_in_this_process(folder: Path) -> None:
    """Trains an epoch on black photos; writes which ones this process saw, and their noise."""
    images = tuple(LabelledImage(folder / f"{i}.png", "train", ()) for i in range(PHOTOS))
    photos = Photos(images, torch.eye(PHOTOS), add_noise)
    recipe = Recipe(batch_size=BATCH)
    accelerator = make_accelerator(cpu=True)
    task = LabelTask(PartlyUsed(), torch.nn.Identity(), photos, photos, recipe, accelerator)
    run = Run(task, recipe, RunFolder(folder, {}), accelerator)
    seen: list[tuple[list[int], list[float]]] = []
    real_loss = task.loss

    def note(logits: Tensor, targets: Tensor) -> Tensor:
        seen.append((targets.argmax(dim=1).tolist(), [float(np.random.rand())]))
        return real_loss(logits, targets)

    task.loss = note
    run._train_epoch()
    path = folder / f"process{accelerator.process_index}.json"
    path.write_text(json.dumps(seen))


@pytest.mark.slow
def test_processes_share_the_photos_and_augment_differently(tmp_path: Path) -> None:
    for i in range(PHOTOS):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{i}.png")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*launch, "-m", __name__, str(tmp_path)], check=True, timeout=300)
    first, second = (json.loads((tmp_path / f"process{i}.json").read_text()) for i in (0, 1))
    assert len(first) == len(second) == PHOTOS // BATCH // 2
    shown = [photo for photos, _ in first + second for photo in photos]
    assert sorted(shown) == list(range(PHOTOS))  # each photo once in an epoch
    assert {noise for _, (noise,) in first}.isdisjoint(noise for _, (noise,) in second)


if __name__ == "__main__":
    train_in_this_process(Path(sys.argv[1]))
