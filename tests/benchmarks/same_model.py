"""Writes a bundle with random weights, which cost as much as trained ones, to compare servers.

    python -m tests.benchmarks.same_model OUT/same-model
    python -m tests.benchmarks.same_model OUT/tresnet-l --precision fp16

The first is of the peers' architecture, EfficientNet-Lite0 at 224 x 224, the second TResNet-L at
448 x 448; both have an ML-Decoder of 80 labels and queries, D = 768 and a feed-forward width of
2048. They are in fp32, and in the other precisions that are named.
"""

import tempfile
from pathlib import Path

import torch
import typer
from torch import nn

from export.build import ExportRequest, build_bundle
from models.backbones.backbone import input_config
from models.checkpoints.checkpoint import write_checkpoint
from models.config import MLDecoderConfig, NetworkConfig
from models.network import Network

_BACKBONES = {
    "same-model": ("tf_efficientnet_lite0", 224, 1280),
    "tresnet-l": ("tresnet_l", 448, 2432),
}
_LABELS = 80


def main(out: Path, *, precision: str = "") -> None:
    """Writes the bundle; the last part of its path chooses the backbone."""
    torch.manual_seed(0)
    backbone, side, width = _BACKBONES[out.name]
    head = MLDecoderConfig(encoder_width=width, num_classes=_LABELS, num_groups=_LABELS)
    spec = input_config(backbone, (side, side))
    network = Network(NetworkConfig(backbone=backbone, input=spec, head=head))
    _normalise(network, side)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write_checkpoint(path, network, tuple(f"label {i}" for i in range(_LABELS)), {})
        precisions = frozenset(each for each in precision.split(",") if each)
        build_bundle(ExportRequest(path, out, precisions=precisions))  # type: ignore[arg-type]


def _normalise(network: Network, side: int) -> None:
    """Gives the norms the statistics of noise: random weights overflow in fp16 without them."""
    for module in network.train().modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.5
    with torch.no_grad():
        for _ in range(3):
            network(torch.randn(4, 3, side, side))
    network.eval()


if __name__ == "__main__":
    typer.run(main)
