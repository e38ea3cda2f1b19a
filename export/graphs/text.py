"""Turns a text encoder into a graph, most with 8-bit weights: token ids -> text embeddings."""

import copy
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.quant_utils import add_pre_process_metadata
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from export.graphs.graph import EmbedTexts, FloatArray, open_session
from export.graphs.optimise import LARGEST, SMALLEST_COMPACTED, optimise
from export.graphs.trace import example, trace_graph
from export.graphs.verify import VerificationError
from models.text import TextEncoder

TEXT_TOLERANCE = 1e-5  # largest difference from torch of a component of a unit embedding
INT8_COSINE = 0.97  # smallest cosine between an embedding of the int8 graph and torch's
COMPACT_COSINE = 0.999  # and with weights in 16 bits

_PROBES = (
    "a photo of a dog.",
    "fire hydrant",
    "a very large, almost empty car park in front of a shopping centre at night",
    "x",
)

logger = logging.getLogger(__name__)


def make_embedder(encoder: TextEncoder, graph: onnx.ModelProto) -> EmbedTexts:
    """Returns a function that embeds texts one by one; it raises RequestError for long ones."""
    session = open_session(graph)

    def embed(texts: Sequence[str]) -> FloatArray:
        encoder.check(texts)
        rows = [embed_tokens(session, *encoder.tokenize([text])) for text in texts]
        return np.concatenate([np.zeros((0, encoder.width), np.float32), *rows])

    return embed


def build_text_graph(encoder: TextEncoder, *, compact: bool = False) -> onnx.ModelProto:
    """Returns a graph of token ids and mask int64 [L, T] -> embeddings float32 [L, E] of length 1.

    Weights are in 8 bits if the encoder wants that, in 16 if `compact` or if they have more than
    2 GB. Raises VerificationError if the graph deviates from torch.
    """
    inputs = encoder.tokenize(_PROBES)
    with torch.inference_mode():
        expected = encoder.module(*inputs).numpy()
    size = sum(weights.numel() * 4 for weights in encoder.module.parameters())
    if not encoder.in_8_bits and (compact or size > LARGEST):
        kind, least = "16-bit", COMPACT_COSINE
        stored = trace_text_encoder(_narrow(encoder.module), fold=False)
    else:
        exact = trace_text_encoder(encoder.module)
        difference = float(np.abs(embed_tokens(open_session(exact), *inputs) - expected).max())
        if not difference <= TEXT_TOLERANCE:
            raise VerificationError(f"text embeddings deviate from torch by {difference:.1e}")
        if not encoder.in_8_bits:
            return exact
        kind, least, stored = "int8", INT8_COSINE, _quantise(exact)
    cosine = float((embed_tokens(open_session(stored), *inputs) * expected).sum(axis=1).min())
    if not cosine >= least:
        raise VerificationError(f"a text embedding in {kind} has cosine {cosine:.4f} with torch's")
    logger.info("text encoder: cosines of %s with torch's are %.4f or more", kind, cosine)
    return stored


def trace_text_encoder(module: nn.Module, *, fold: bool = True) -> onnx.ModelProto:
    """Traces and optimises a text encoder in float32, L and T dynamic."""
    names = ("input_ids", "attention_mask")
    inputs = {name: example("L", "T", dtype=torch.int64) for name in names}
    return optimise(trace_graph(module, inputs, "embeddings"), fold=fold)


class _Widen(nn.Module):
    def forward(self, stored: Tensor) -> Tensor:
        return stored.float()


def _narrow(module: nn.Module) -> nn.Module:
    """Returns a copy that stores large weights in float16 and computes with them in float32.

    `compact_weights` would need the whole graph in float32 first, which ends at 2 GB.
    """
    narrow = copy.deepcopy(module)
    for part in list(narrow.modules()):
        for name, weights in list(part.named_parameters(recurse=False)):
            if weights.numel() >= SMALLEST_COMPACTED:
                register_parametrization(part, name, _Widen(), unsafe=True)
                parametrization: Any = part.parametrizations
                parametrization[name].original.data = weights.data.half()
    return narrow


def _quantise(model: onnx.ModelProto) -> onnx.ModelProto:
    """Stores weights in 8 bits, one scale an output channel; activations are quantised at runtime.

    Weights use 7 of the 8 bits: at 8, a CPU without VNNI saturates or takes slower kernels, and
    replicas on different CPUs must compute the same label.
    """
    prepared = copy.deepcopy(model)
    add_pre_process_metadata(prepared)  # `optimise` did this step; the quantiser requires the mark
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "fp32.onnx", Path(folder) / "int8.onnx"
        onnx.save(prepared, source)
        quantize_dynamic(
            source, target, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True
        )
        quantised = onnx.load(target)
    del quantised.metadata_props[:]
    return quantised


def embed_tokens(session: onnxruntime.InferenceSession, ids: Tensor, mask: Tensor) -> FloatArray:
    """Maps token ids and mask int64 [L, T] to embeddings float32 [L, E]."""
    feeds = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
    return np.asarray(session.run(["embeddings"], feeds)[0], np.float32)
