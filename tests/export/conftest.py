"""A tiny network, its graphs and a labelled folder of coloured pictures, made once."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from torch import nn

from export.build import ExportRequest, build_bundle
from export.graphs.graph import EncoderAndHead, Graphs
from export.graphs.optimise import optimise
from export.graphs.trace import trace_encoder, trace_heads
from export.graphs.verify import make_noise
from export.int8.quantise import Quantiser
from models.checkpoints.checkpoint import write_checkpoint
from models.checkpoints.open_head import fingerprint_encoder
from models.config import InputConfig
from models.network import Network
from service.bundle.reader import Bundle
from service.images.decode import PixelArray
from tests.export.tiny_network import (
    ENCODER_WIDTH,
    INPUT,
    LABELS,
    NUM_TOKENS,
    make_network,
    write_folder,
)

NOUNS = tuple(f"noun {i}" for i in range(60))
"""The nouns of screens: the real ones take half a minute to embed."""


@pytest.fixture(autouse=True, scope="session")
def few_nouns() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("export.calibration.screen.read_nouns", lambda: NOUNS)
        yield


@pytest.fixture(autouse=True, scope="session")
def traced_once() -> Iterator[None]:
    """Traces an encoder once for all exports: that takes most of their time."""
    traced: dict[tuple[str, InputConfig], onnx.ModelProto] = {}

    def trace_once(backbone: nn.Module, spec: InputConfig) -> onnx.ModelProto:
        key = fingerprint_encoder(backbone), spec
        if key not in traced:
            traced[key] = trace_encoder(backbone, spec)
        return traced[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("export.variants.trace_encoder", trace_once)
        yield


@pytest.fixture(scope="session")
def network() -> Network:
    """A test-sized EfficientNet with a decoder, in eval mode."""
    return make_network()


@pytest.fixture(scope="session")
def graphs(network: Network) -> Graphs:
    """The optimised float32 graphs of `network`."""
    return {
        "encoder": optimise(trace_encoder(network.backbone, INPUT)),
        **trace_heads(network.head, NUM_TOKENS, ENCODER_WIDTH),
    }


@pytest.fixture(scope="session")
def pixels() -> PixelArray:
    """Sixteen pictures, uint8 [16, 32, 48, 3]."""
    return make_noise(16, INPUT)


@pytest.fixture(scope="session")
def quantiser(
    graphs: Graphs, pixels: PixelArray, tmp_path_factory: pytest.TempPathFactory
) -> Quantiser:
    """Quantises the encoder."""
    feeds = ({"images": picture[np.newaxis]} for picture in pixels)
    return Quantiser(graphs["encoder"], feeds, tmp_path_factory.mktemp("int8"))


@pytest.fixture(scope="session")
def head_quantiser(
    graphs: Graphs, pixels: PixelArray, tmp_path_factory: pytest.TempPathFactory
) -> Quantiser:
    """Quantises the head."""
    tokens = EncoderAndHead(graphs).encode(pixels[:1])
    folder = tmp_path_factory.mktemp("int8_head")
    return Quantiser(graphs["trained_head"], [{"tokens": tokens}], folder)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, network: Network) -> Path:
    """The network's own checkpoint file; tests read it only."""
    path = tmp_path_factory.mktemp("checkpoint") / "tiny.safetensors"
    write_checkpoint(path, network, LABELS, {"training_data": "coloured noise"})
    return path


@pytest.fixture(scope="session")
def plain_bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The checkpoint's export in fp32, without photos; tests read it only."""
    return build_bundle(ExportRequest(checkpoint, tmp_path_factory.mktemp("plain") / "model"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled pictures; tests read them only."""
    return write_folder(tmp_path_factory.mktemp("photos") / "colours")
