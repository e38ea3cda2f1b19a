"""Traces a torch network to the graphs of a bundle, dynamic in images, tokens and labels."""

import logging
import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from export import ExportError
from export.graphs.graph import OPSET, Graphs
from export.graphs.optimise import optimise
from models.config import CosineConfig, InputConfig
from models.heads.cosine import CosineHead
from models.heads.maps import make_maps
from models.heads.ml_decoder import MLDecoder
from models.heads.query2label import Query2Label
from models.heads.ram import Ram
from models.heads.screen import Screen
from models.heads.timm_head import TimmHead
from models.heads.zero_shot import ZeroShotMLDecoder
from service.bundle.manifest import GraphName

Example = tuple[Tensor, Mapping[int, str]]  # an input, and the size names of its dynamic axes
# A module, its inputs in the order of its arguments, and the names of its outputs.
Traceable = tuple[nn.Module, Mapping[str, Example], *tuple[str, ...]]

MEMORY = "memory"  # output of heads with maps: the tokens that their queries attend to

# Sizes to trace with. The exporter treats 0 and 1 as constants, and equal sizes as one size.
_SIZES = {"B": 2, "L": 3, "S": 5, "T": 7}


class PixelEncoder(nn.Module):
    """A backbone with scaling and normalisation of the pixels.

    (x / 255 - mean) / std is computed as (x - mean) * scale, in units of pixels, so that the scale
    can become part of the first convolution's weights (`pixels.py`). The transposition is done on
    bytes.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, backbone: nn.Module, spec: InputConfig) -> None:
        """Wraps a backbone: normalised images float [B, 3, H, W] -> tokens [B, S, C]."""
        super().__init__()
        self.backbone = backbone
        mean, std = (torch.tensor(row, dtype=torch.float64) for row in (spec.mean, spec.std))
        self.register_buffer("mean", (255 * mean).float()[:, None, None])  # [3, 1, 1]
        self.register_buffer("scale", (1 / (255 * std)).float()[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """Maps images uint8 [B, H, W, 3], RGB, to tokens float [B, S, C]."""
        pixels = images.permute(0, 3, 1, 2).float()  # [B, 3, H, W]
        return self.backbone((pixels - self.mean) * self.scale)


class _Call(nn.Module):
    """A function of the graph's inputs that uses a module."""

    def __init__(self, module: nn.Module, function: Callable[..., object]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*inputs)


def trace_encoder(backbone: nn.Module, spec: InputConfig) -> onnx.ModelProto:
    """Traces images uint8 [B, H, W, 3] -> tokens float32 [B, S, C], B dynamic."""
    images = example("B", spec.height, spec.width, 3, dtype=torch.uint8)
    return trace_graph(PixelEncoder(backbone, spec), {"images": images}, "tokens")


def trace_heads(
    head: nn.Module, tokens: int, width: int, grid: tuple[int, int] | None = None
) -> Graphs:
    """Traces and optimises a head's graphs, see `describe_heads`."""
    described = describe_heads(head, tokens, width, grid).items()
    return {name: optimise(trace_graph(*each)) for name, each in described}


def describe_heads(
    head: nn.Module, tokens: int, width: int, grid: tuple[int, int] | None
) -> dict[GraphName, Traceable]:
    """Describes a head's graphs for tokens [B, tokens, width], the label encoder before its user.

    With a `grid` of the tokens, heads with maps return their memory too. The number of tokens stays
    dynamic, except for heads that are bound to a grid.
    """
    bound, scorer = isinstance(head, Query2Label | TimmHead), _Call(head, partial(_score, head))
    inputs = {"tokens": example("B", tokens if bound else "S", width)}
    described: dict[GraphName, Traceable] = {}
    if isinstance(head, MLDecoder) and grid is not None:
        described["trained_head"] = scorer, inputs, "logits", MEMORY
        asked = {"labels": example("L", dtype=torch.int64)}
        described["trained_head_maps"] = _describe_maps(head, grid, asked)
    elif not isinstance(head, ZeroShotMLDecoder | CosineHead):
        described["trained_head"] = head, inputs, "logits"
    if isinstance(head, ZeroShotMLDecoder | CosineHead | Ram):
        names = {"embeddings": example("L", head.config.embedding_width)}
        described["label_encoder"] = _Call(head, head.encode_labels), names, "queries"
        queries = {"queries": example("L", head.config.query_width)}
        if grid is None or isinstance(head, Ram):
            described["open_head"] = _Call(head, head.score), inputs | queries, "logits"
        else:
            described["open_head"] = scorer, inputs | queries, "logits", MEMORY
            described["open_head_maps"] = _describe_maps(head, grid, queries)
    return described


def _score(head: Any, tokens: Tensor, *queries: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
    """Returns logits and memory."""
    memory = head.remember(tokens)
    return head.recall(*((tokens, memory, *queries) if queries else (memory,))), memory


def _describe_maps(
    head: MLDecoder | ZeroShotMLDecoder | CosineHead,
    grid: tuple[int, int],
    labels: Mapping[str, Example],
) -> Traceable:
    maps, count = make_maps(head, grid)
    config = head.config
    width = config.embedding_width if isinstance(config, CosineConfig) else config.decoder_width
    return maps, {"memory": example("B", count, width), **labels}, "maps"


def trace_label_encoder(screen: Screen) -> onnx.ModelProto:
    """Traces embeddings float32 [L, E] -> queries float32 [L, K] and the screen's keys."""

    def encode(embeddings: Tensor) -> tuple[Tensor, ...]:
        queries = screen.head.encode_labels(embeddings)
        return queries, *screen.describe(queries).values()

    inputs = {"embeddings": example("L", screen.head.config.embedding_width)}
    return trace_graph(_Call(screen, encode), inputs, "queries", *_describe_keys(screen))


def trace_screened_head(screen: Screen) -> onnx.ModelProto:
    """Traces `Screen.forward`, B and L dynamic; S is that of the grid."""
    config = screen.head.config
    inputs = {
        "tokens": example("B", math.prod(screen.grid), config.encoder_width),
        "queries": example("L", config.query_width),
        "scale": example("L"),
        "shift": example("L"),
        "wanted": example("B", dtype=torch.int64),
        **_describe_keys(screen),
    }
    return trace_graph(screen, inputs, "logits", "positions", "needed", MEMORY)


@torch.no_grad()
def _describe_keys(screen: Screen) -> dict[str, Example]:
    queries = torch.zeros(_SIZES["L"], screen.head.config.query_width)
    return {name: (key, {0: "L"}) for name, key in screen.describe(queries).items()}


def example(*sizes: int | str, dtype: torch.dtype = torch.float32) -> Example:
    """Returns an input to trace with; the axes whose sizes are names stay dynamic."""
    numbers = [_SIZES[size] if isinstance(size, str) else size for size in sizes]
    axes = {axis: size for axis, size in enumerate(sizes) if isinstance(size, str)}
    return torch.zeros(numbers, dtype=dtype), axes


def trace_graph(module: nn.Module, inputs: Mapping[str, Example], *targets: str) -> onnx.ModelProto:
    """Traces a module, or raises ExportError; `inputs` are in the order of its arguments."""
    layer: Any
    for layer in module.modules():
        # The exporter decomposes the fused step of timm's attention with other strides, on which
        # many of its networks fail. The plain steps give the same numbers, in fewer nodes.
        if hasattr(layer, "fused_attn"):
            layer.fused_attn = False
    # torch.export's tracer resolves shape arithmetic, of which TorchScript leaves hundreds of nodes
    # (98 instead of 608 on an EfficientNet-Lite).
    dims = {name: torch.export.Dim(name) for name in _SIZES}
    axes = tuple({axis: dims[name] for axis, name in axes.items()} for _, axes in inputs.values())
    for noisy in ("torch.onnx", "onnxscript"):  # they log their internals
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module.eval(),
                tuple(tensor for tensor, _ in inputs.values()),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=list(targets),
                dynamic_shapes=(axes,) if isinstance(module, _Call) else axes,
            )
    except torch.onnx.OnnxExporterError as error:
        cause = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ExportError(f"the network cannot be traced to ONNX: {cause}") from error
    assert program is not None
    return program.model_proto
