"""A torch network becomes two ONNX graphs: encoder and head.

In: a network in eval mode. Out: `encoder` (uint8 images -> tokens) and `trained_head`
(tokens -> logits), dynamic in the batch, the head in the tokens too. Next: `optimise.py`.
"""

from __future__ import annotations

import logging
import warnings
from typing import Protocol

import onnx
import torch
from torch import Tensor, nn

OPSET = 20
"""ONNX operator set: the first with Gelu, read by ONNX Runtime 1.18 and later."""

_TRACED_BATCH = 2  # 0 and 1 would be taken for constants
Triple = tuple[float, float, float]


class InputSpec(Protocol):
    """What the trace reads of a network's input configuration; see `models.config`."""

    @property
    def height(self) -> int:
        """H, pixels."""

    @property
    def width(self) -> int:
        """W, pixels."""

    @property
    def mean(self) -> Triple:
        """Subtracted per channel from pixels in 0..1."""

    @property
    def std(self) -> Triple:
        """Divided by per channel."""


class PixelEncoder(nn.Module):
    """A backbone that takes pixels: scaling and normalisation are part of it.

    (x / 255 - mean) / std is computed as x * scale + shift on rows of W * 3 interleaved
    values: ONNX Runtime broadcasts over a last axis of 3 about ten times slower than over
    one of W * 3, and would move the arithmetic there from [B, 3, H, W].
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, backbone: nn.Module, spec: InputSpec) -> None:
        """Wraps a backbone.

        Args:
            backbone: normalised images float [B, 3, H, W] -> tokens [B, S, C].
            spec: mean and std, and the W that the rows have.
        """
        super().__init__()
        self.backbone = backbone
        mean = torch.tensor(spec.mean, dtype=torch.float64)
        std = torch.tensor(spec.std, dtype=torch.float64)
        self.register_buffer("scale", (1 / (255 * std)).repeat(spec.width).float())  # [W * 3]
        self.register_buffer("shift", (-mean / std).repeat(spec.width).float())  # [W * 3]

    def forward(self, images: Tensor) -> Tensor:
        """Maps images uint8 [B, H, W, 3], RGB, to tokens float [B, S, C]."""
        rows = images.flatten(2).float() * self.scale + self.shift  # [B, H, W * 3]
        normalised = rows.reshape(images.shape).permute(0, 3, 1, 2)  # [B, 3, H, W]
        tokens: Tensor = self.backbone(normalised)
        return tokens


def trace_encoder(backbone: nn.Module, spec: InputSpec) -> onnx.ModelProto:
    """Traces images uint8 [B, H, W, 3] -> tokens float32 [B, S, C], B dynamic."""
    images = torch.zeros(_TRACED_BATCH, spec.height, spec.width, 3, dtype=torch.uint8)
    return _trace(PixelEncoder(backbone, spec), images, "images", "tokens", {0: "B"})


def trace_head(head: nn.Module, num_tokens: int, width: int) -> onnx.ModelProto:
    """Traces tokens float32 [B, S, C] -> logits float32 [B, N], B and S dynamic.

    Args:
        head: the head.
        num_tokens: S to trace with; any S works afterwards.
        width: C.
    """
    tokens = torch.zeros(_TRACED_BATCH, max(num_tokens, 2), width)
    return _trace(head, tokens, "tokens", "logits", {0: "B", 1: "S"})


def _trace(
    module: nn.Module, example: Tensor, source: str, target: str, dynamic: dict[int, str]
) -> onnx.ModelProto:
    # torch.export's tracer and not TorchScript: it resolves shape arithmetic, where the
    # other leaves hundreds of nodes behind (98 against 608 on an EfficientNet-Lite).
    axes = {axis: torch.export.Dim(name) for axis, name in dynamic.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's remarks on its own internals
        for noisy in ("torch.onnx", "onnxscript"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        program = torch.onnx.export(
            module.eval(),
            (example,),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=[source],
            output_names=[target],
            dynamic_shapes=(axes,),
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    return program.model_proto
