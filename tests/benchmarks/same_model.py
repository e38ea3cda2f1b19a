"""Writes a bundle of the peers' architecture, to compare servers instead of models.

    python -m tests.benchmarks.same_model OUT/same-model

EfficientNet-Lite0 at 224 x 224 in fp32 with an ML-Decoder of 80 labels and queries, D = 768 and a
feed-forward width of 2048. The weights are random, which costs as much as trained ones.
"""

import tempfile
from pathlib import Path

import torch
import typer

from export.build import ExportRequest, build_bundle
from models.backbones.backbone import input_config
from models.checkpoints.checkpoint import write_checkpoint
from models.config import MLDecoderConfig, NetworkConfig
from models.network import Network

_BACKBONE, _SIDE, _LABELS = "tf_efficientnet_lite0", 224, 80


def main(out: Path) -> None:
    """Writes the bundle."""
    torch.manual_seed(0)
    head = MLDecoderConfig(
        encoder_width=1280,
        num_classes=_LABELS,
        num_groups=_LABELS,
        decoder_width=768,
        num_heads=8,
        feedforward_width=2048,
    )
    spec = input_config(_BACKBONE, (_SIDE, _SIDE))
    network = Network(NetworkConfig(backbone=_BACKBONE, input=spec, head=head)).eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        names = tuple(f"label {i}" for i in range(_LABELS))
        write_checkpoint(path, network, names, {})
        build_bundle(ExportRequest(path, out))


if __name__ == "__main__":
    typer.run(main)
