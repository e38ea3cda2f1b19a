"""Compares graphs with the torch network, at sizes that were not traced."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from export import ExportError
from export.graphs.graph import FloatArray, Graphs, open_session
from export.graphs.trace import describe_heads
from models.config import InputConfig
from models.heads.ml_decoder import MLDecoder
from models.heads.open_head import OpenHead
from models.heads.ram import Ram
from service.bundle.manifest import MAP_GRAPHS
from service.images.decode import PixelArray

# Largest allowed difference from torch, relative to torch's largest value: for float32 graphs, for
# weights rounded to float16, and for float16 graphs, in which values may overflow or vanish.
FP32_TOLERANCE = 1e-4
COMPACT_TOLERANCE = 2e-2
HALF_TOLERANCE = 2e-2

_Array = NDArray[np.generic]
# Images, tokens and labels to verify with; graphs are traced with 2 images and 3 labels.
_SIZES = ((1, 1, 1), (3, 50, 7), (5, 23, 40))
NUM_IMAGES = 5  # the most of them
_SEED = 0
_OWN_ROUNDING = 10  # times what torch's float32 rounds is allowed; usually that is below 1e-5
_NOISE = 100  # tolerances; where torch rounds more, a comparison shows nothing


class VerificationError(ExportError):
    """A graph and the torch network differ by more than the tolerance."""


@dataclass(frozen=True, eq=False)
class Deviation:
    """What a graph returns for a case, and what torch does."""

    case: str
    expected: FloatArray
    actual: FloatArray

    @property
    def value(self) -> float:
        """The largest difference, relative to the largest expected value."""
        scale = float(np.abs(self.expected).max()) or 1.0
        return float(np.abs(self.expected - self.actual).max()) / scale


def verify_graphs(
    network: nn.Module, graphs: Graphs, spec: InputConfig, pixels: PixelArray, tolerance: float
) -> Deviation:
    """Compares the encoder and all graphs of the head with torch; returns the largest deviation.

    The network is in eval mode; pixels are uint8 [n, H, W, 3], n at least `NUM_IMAGES`. Raises
    VerificationError if a deviation is over the tolerance or not finite.
    """

    def compare(network: nn.Module) -> list[Deviation]:
        deviations = _compare_encoder(network, graphs, spec, pixels)
        return deviations + _compare_head(network.get_submodule("head"), graphs)

    return _verify(network, compare, tolerance)


def verify_head(head: nn.Module, graphs: Graphs, tolerance: float) -> Deviation:
    """Compares a head's graphs with torch on noise; see `verify_graphs`."""
    return _verify(head, lambda head: _compare_head(head, graphs), tolerance)


def make_noise(count: int, spec: InputConfig) -> PixelArray:
    """Returns seeded pictures of coloured blocks with noise, uint8 [count, H, W, 3]."""
    stream = np.random.default_rng(_SEED)
    blocks = stream.integers(0, 256, (count, 4, 4, 3))
    rows, columns = (np.arange(size) * 4 // size for size in (spec.height, spec.width))
    pictures = blocks[:, rows][:, :, columns]
    noise = stream.integers(-20, 21, pictures.shape)
    return (pictures + noise).clip(0, 255).astype(np.uint8)


def _verify(
    network: nn.Module, compare: Callable[[nn.Module], list[Deviation]], tolerance: float
) -> Deviation:
    """Compares with torch; if they deviate, with torch in float64.

    Float32 rounds in torch too: of a Query2Label network of 448 pixels by 1.4e-4, of a TResNet with
    FReLU and random weights by 2.7e-4 on photos and by 0.1 on some of the noise. Cases in which it
    rounds too much are skipped; the first case, of a single image, raises.
    """
    with torch.inference_mode():
        single = exact = compare(network)
        if not all(deviation.value <= tolerance for deviation in single):  # also if one is NaN
            exact = compare(copy.deepcopy(network).double())
    shown = []
    for rounded, deviation in zip(single, exact, strict=True):
        error = Deviation(deviation.case, deviation.expected, rounded.expected).value
        limit = max(tolerance, _OWN_ROUNDING * error)
        if error <= _NOISE * tolerance:
            shown.append(deviation)
            if not deviation.value <= limit:
                raise VerificationError(
                    f"{deviation.case} deviates from torch by {deviation.value:.1e} of the largest "
                    f"value, {limit:.0e} is allowed"
                )
        elif not shown:
            raise VerificationError(
                f"{deviation.case}: torch in float32 deviates from float64 by {error:.1e} of the "
                "largest value, so that no graph can be compared with it"
            )
    return max(shown, key=lambda deviation: deviation.value)


def _compare_encoder(
    network: nn.Module, graphs: Graphs, spec: InputConfig, pixels: PixelArray
) -> list[Deviation]:
    encoder = open_session(graphs["encoder"])
    head = open_session(graphs["trained_head"]) if "trained_head" in graphs else None
    deviations = []
    for batch, *_ in _SIZES:
        images = pixels[:batch]
        values = _normalise(images, spec).to(_find_dtype(network))
        expected = network.get_submodule("backbone")(values)
        tokens = encoder.run(["tokens"], {"images": images})[0]
        deviations.append(_deviation(f"tokens of {batch} images", expected, tokens))
        if head is not None:
            logits = head.run(["logits"], {"tokens": tokens})[0]
            wanted = network.get_submodule("head")(expected)
            deviations.append(_deviation(f"logits of {batch} images", wanted, logits))
    return deviations


def _compare_head(head: nn.Module, graphs: Graphs) -> list[Deviation]:
    """Compares a decoder's graphs on noise; queries are those of the label encoder."""
    if not isinstance(head, MLDecoder | OpenHead):
        return []
    drawn = [graphs[name].graph.output[0] for name in MAP_GRAPHS if name in graphs]
    grids = [[d.dim_value for d in maps.type.tensor_type.shape.dim[2:]] for maps in drawn]
    grid = (grids[0][0], grids[0][1]) if grids else None
    described = describe_heads(head, 0, head.config.encoder_width, grid)
    sessions = {name: open_session(graphs[name]) for name in described}
    stream, deviations = np.random.default_rng(_SEED), []
    for batch, count, labels in _SIZES:
        sizes, known = {"B": batch, "S": count, "L": labels}, dict[str, tuple[Tensor, _Array]]()
        for name, (module, inputs, *targets) in described.items():
            for key, (tensor, axes) in inputs.items():
                if key != "queries":
                    shape = [sizes.get(axes.get(i, ""), n) for i, n in enumerate(tensor.shape)]
                    noise = _draw(head, key, shape, stream)
                    known[key] = _to_tensor(noise, head), noise
            results = module.to(_find_dtype(head))(*(known[key][0] for key in inputs))
            expected = results if isinstance(results, tuple) else (results,)
            actual = sessions[name].run(targets, {key: known[key][1] for key in inputs})
            for key, pair in zip(targets, zip(expected, actual, strict=True), strict=True):
                known[key] = pair
                if (name, key) != ("trained_head", "logits"):  # compared on photos
                    case = f"{key} of {labels} labels on {batch} images"
                    deviations.append(_deviation(case, *pair))
    return deviations


def _draw(
    head: MLDecoder | OpenHead, name: str, shape: Sequence[int], stream: np.random.Generator
) -> _Array:
    """Draws an input of a head's graph."""
    if name == "labels" and isinstance(head, MLDecoder):
        return stream.integers(0, head.config.num_classes, shape)
    noise = stream.standard_normal(shape, dtype=np.float32)
    if name == "embeddings" and isinstance(head, Ram):
        # Texts have length 1, and RAM++ takes labels with few of them.
        noise /= np.sqrt(head.config.text_width)
        noise[0, head.config.text_width :] = 0
    return noise


def _normalise(pixels: PixelArray, spec: InputConfig) -> Tensor:
    # The plain definition: the traced arithmetic would repeat its own errors.
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255  # [B, 3, H, W]
    mean, std = (torch.tensor(row).view(3, 1, 1) for row in (spec.mean, spec.std))
    return (images - mean) / std


def _find_dtype(module: nn.Module) -> torch.dtype:
    return next(module.parameters()).dtype


def _to_tensor(array: _Array, module: nn.Module) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.to(_find_dtype(module)) if tensor.is_floating_point() else tensor


def _deviation(case: str, expected: Tensor, actual: FloatArray) -> Deviation:
    reference = expected.numpy()
    if reference.shape != actual.shape:
        raise VerificationError(f"{case}: shape {actual.shape}, torch gives {reference.shape}")
    return Deviation(case, reference, actual)
