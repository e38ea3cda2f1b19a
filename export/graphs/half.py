"""The fp16 variant: float16 inside, float32 tokens and logits at the boundary.

In: an optimised float32 graph. Out: the same graph in float16, meant for GPUs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import onnx
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.transformers.float16 import convert_float_to_float16

from export.errors import VerificationError


def halve(model: onnx.ModelProto) -> onnx.ModelProto:
    """Converts to float16; inputs and outputs keep their types."""
    half = onnx.ModelProto()
    half.CopyFrom(model)  # the converter works in place
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one warning for each weight too small for float16
        converted: onnx.ModelProto = convert_float_to_float16(half, keep_io_types=True)
    ONNXModel(converted).topological_sort()  # the converter appends its casts at the end
    onnx.checker.check_model(converted)
    return converted


@contextmanager
def name_half() -> Iterator[None]:
    """Says of a refusal that it is of this variant, which an export may leave out.

    Raises:
        VerificationError: the refusal.
    """
    try:
        yield
    except VerificationError as error:
        raise VerificationError(f"fp16, which --precision may leave out: {error}") from error
