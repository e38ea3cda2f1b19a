"""Shorter ways of the pixels give what the long ones gave."""

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from export.graphs.graph import open_session, prelude_nodes
from export.graphs.optimise import optimise
from export.graphs.pixels import feed_pixels, fold_scale
from export.graphs.trace import PixelEncoder, trace_encoder
from export.int8 import quantise
from export.int8.quantise import Quantiser
from export.int8.search import signal_to_noise
from models.config import InputConfig
from service.images.decode import PixelArray

_SIDE = 24
_GREY = (0.5, 0.5, 0.5)
_SAME_MEANS = [_GREY, (0.0, 0.0, 0.0), (0.25, 0.25, 0.25)]
_IMAGENET = (0.485, 0.456, 0.406)
_READ_PIXELS = {"Transpose", "Gather", "DequantizeLinear"}


def make_stem(window: int = 3, *, bias: bool = True) -> nn.Module:
    """A backbone of one padded convolution, whose borders show a wrong mean."""
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 8, window, stride=2, padding=1, bias=bias)
    return nn.Sequential(layer, nn.ReLU(), nn.Flatten(2)).eval()


def make_spec(mean: tuple[float, float, float]) -> InputConfig:
    return InputConfig(height=_SIDE, width=_SIDE, mean=mean, std=(0.2, 0.25, 0.3))


@pytest.fixture(scope="module")
def pictures() -> PixelArray:
    """Noise, with every value from black to white in each picture."""
    return np.random.default_rng(0).integers(0, 256, (6, _SIDE, _SIDE, 3), dtype=np.uint8)


def run(model: onnx.ModelProto, pictures: PixelArray) -> np.ndarray:
    return np.asarray(open_session(model).run(["tokens"], {"images": pictures})[0])


@cache
def trace(backbone: nn.Module, mean: tuple[float, float, float]) -> onnx.ModelProto:
    return optimise(trace_encoder(backbone, make_spec(mean)))


STEM = make_stem()


def quantise_stem(model: onnx.ModelProto, pictures: PixelArray, folder: Path) -> onnx.ModelProto:
    feeds = ({"images": picture[np.newaxis]} for picture in pictures)
    return Quantiser(model, feeds, folder).quantise()


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def kinds_before(model: onnx.ModelProto) -> set[str]:
    """Returns the operators between the pixels and the first layer."""
    before = prelude_nodes(model)
    constant = {tensor.name for tensor in model.graph.initializer}
    return {n.op_type for n in model.graph.node if n.name in before and n.input[0] not in constant}


def test_scale_becomes_part_of_the_weights(pictures: PixelArray) -> None:
    model = trace(STEM, _IMAGENET)

    assert kinds_before(model) == {"Transpose", "Cast", "Sub"}
    with torch.inference_mode():
        expected = PixelEncoder(STEM, make_spec(_IMAGENET))(torch.from_numpy(pictures)).numpy()
    assert np.abs(run(model, pictures) - expected).max() <= 1e-5 * np.abs(expected).max()


def test_scale_stays_before_another_layer(pictures: PixelArray) -> None:
    model = trace(nn.Sequential(nn.Flatten(2), nn.Linear(_SIDE**2, 8)).eval(), _IMAGENET)
    before = run(model, pictures)

    fold_scale(model)

    assert "Mul" in kinds(model)
    assert np.array_equal(run(model, pictures), before)


@pytest.mark.parametrize(
    ("mean", "expected"),
    [
        *((mean, _READ_PIXELS) for mean in _SAME_MEANS),
        (_IMAGENET, _READ_PIXELS | {"Cast", "Sub", "QuantizeLinear"}),
        *(((mean, mean, mean), None) for mean in (-0.2, 1.2)),
    ],
)
def test_int8_layer_reads_pixels_when_the_channels_share_a_mean_in_their_range(
    pictures: PixelArray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mean: tuple[float, float, float],
    expected: set[str] | None,
) -> None:
    exact = trace(STEM, mean)
    short = quantise_stem(exact, pictures, tmp_path)
    monkeypatch.setattr(quantise, "feed_pixels", lambda _: None)
    long = quantise_stem(exact, pictures, tmp_path)

    assert expected is None or kinds_before(short) == expected
    tokens = run(exact, pictures)
    noise = [signal_to_noise(tokens, run(model, pictures)) for model in (short, long)]
    assert noise[0] > max(30, noise[1] - 0.1)  # loses no more than rounded values


def test_fourth_channel_is_for_small_windows(pictures: PixelArray, tmp_path: Path) -> None:
    model = quantise_stem(trace(make_stem(8), _GREY), pictures, tmp_path)

    assert kinds_before(model) == {"Transpose", "DequantizeLinear"}


def test_feed_pixels_skips_layers_without_bias_or_in_float(
    pictures: PixelArray, tmp_path: Path
) -> None:
    exact = trace(make_stem(bias=False), _GREY)
    for model in (exact, quantise_stem(exact, pictures, tmp_path)):
        before = run(model, pictures)

        feed_pixels(model)

        assert "Gather" not in kinds(model)
        assert np.array_equal(run(model, pictures), before)
