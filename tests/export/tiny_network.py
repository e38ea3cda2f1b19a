"""A network of test size and the labelled pictures it is exported with."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from models.config import InputConfig, MLDecoderConfig, NetworkConfig
from models.network import Network
from service.bundle.card import InputContract
from service.engine.heads import LogitsArray
from service.images.decode import PixelArray
from tests.models import shake

LABELS = ("blue", "green", "red")
INPUT = InputConfig(height=32, width=48, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))
CONTRACT = InputContract(height=32, width=48, resize_mode="squash", interpolation="bilinear")
NUM_TOKENS, ENCODER_WIDTH = 2, 256
SPLITS = {"train": 16, "val": 24, "test": 24}


def make_network(seed: int = 0, **changes: object) -> Network:
    """A test-sized EfficientNet and decoder with lively weights, in eval mode.

    Changes are of its configuration.
    """
    torch.manual_seed(seed)
    head = MLDecoderConfig(
        num_classes=len(LABELS),
        encoder_width=ENCODER_WIDTH,
        decoder_width=32,
        num_heads=4,
        feedforward_width=64,
    )
    config = NetworkConfig(backbone="test_efficientnet", input=INPUT, head=head)
    return shake(Network(config.model_copy(update=changes)), 0.1).eval()


def run_torch(network: Network, pixels: PixelArray, *embeddings: torch.Tensor) -> LogitsArray:
    """Returns the logits of pixels uint8 [B, H, W, 3], normalised by definition."""
    spec = network.config.input
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (spec.mean, spec.std))
    with torch.inference_mode():
        images = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - mean) / std
        return np.asarray(network(images, *embeddings))


def assert_close(actual: LogitsArray, expected: LogitsArray, tolerance: float = 1e-4) -> None:
    """Compares with the largest value, which is what float32 sums round against."""
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


def make_picture(stream: np.random.Generator, labels: tuple[str, ...]) -> PixelArray:
    """Noise on grey, brighter in the channels of the labels; uint8 [40, 56, 3]."""
    picture = stream.integers(40, 120, (40, 56, 3))
    for label in labels:
        picture[..., ("red", "green", "blue").index(label)] += 130
    return picture.astype(np.uint8)


def write_folder(folder: Path, label_names: tuple[str, ...] = ("red", "green", "blue")) -> Path:
    """Writes a labelled folder of pictures; its index names the labels in the order given."""
    stream = np.random.default_rng(1)
    (folder / "images").mkdir(parents=True)
    images = {}
    for split, count in SPLITS.items():
        for i in range(count):
            labels = tuple(name for name in ("red", "green", "blue") if stream.random() < 0.5)
            file = f"{split}{i}.png"
            Image.fromarray(make_picture(stream, labels)).save(folder / "images" / file)
            images[file] = {"split": split, "labels": labels}
    index = {"name": "colours", "label_names": label_names, "images": images}
    (folder / "labels.json").write_text(json.dumps(index))
    return folder
