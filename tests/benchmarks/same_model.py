"""A bundle of the very architecture that the peers serve, to compare servers and not models.

    python -m tests.benchmarks.same_model OUT/same-model

In: nothing; the weights are random, which costs what trained ones cost. Out: an fp32 bundle of
EfficientNet-Lite0 at 224 x 224 with an ML-Decoder of 80 labels, 80 queries, D = 768 and a
feed-forward width of 2048. Next: `serving.py --bundle`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from export.build import ExportRequest, build_bundle
from models.backbones.backbone import input_config
from models.checkpoints.checkpoint import write_checkpoint
from models.config import MLDecoderConfig, NetworkConfig
from models.network import Network

_BACKBONE, _SIDE, _LABELS = "tf_efficientnet_lite0", 224, 80


def main() -> None:
    """Writes the bundle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    torch.manual_seed(0)
    head = MLDecoderConfig(
        encoder_width=1280,
        num_classes=_LABELS,
        num_groups=_LABELS,
        decoder_width=768,
        num_heads=8,
        feedforward_width=2048,
    )
    config = NetworkConfig(
        backbone=_BACKBONE, input=input_config(_BACKBONE, (_SIDE, _SIDE)), head=head
    )
    network = Network(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        names = tuple(f"label {i}" for i in range(_LABELS))
        write_checkpoint(path, network, names, {})
        build_bundle(ExportRequest(path, out))


if __name__ == "__main__":
    main()
