"""Our inputs before published towers, embeddings of length 1 behind them, and the head of both."""

from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import compose, numpy_helper
from onnx.parser import parse_graph, parse_model

from export import ExportError
from export.graphs.graph import OPSET
from models.config import InputConfig
from service.bundle.manifest import GraphName

Kind = Literal["clip", "siglip"]

_PREFIX = "tower_"  # of the published names, so that ours are free
_OLDEST = 11  # operator set in which Pad takes its sizes as an input

OUTPUTS = {"clip": ("image_embeds", "text_embeds"), "siglip": ("pooler_output",)}
"""Names of embeddings in published graphs."""

_IMAGES = """images (uint8[B, {height}, {width}, 3] images) => (float[B, 3, H, W] values) {{
    turned = Transpose<perm = [0, 3, 1, 2]>(images)
    pixels = Cast<to = 1>(turned)
    centred = Sub(pixels, mean)
    scaled = Mul(centred, scale)
    tower_pixel_values = Cast<to = {type}>(scaled)
}}"""
# After a text stands `pad`: SigLIP reads it too, up to `length`; a CLIP may take any length.
_TEXTS = """texts (int64[L, T] input_ids, int64[L, T] attention_mask) => (int64[L, S] ids) {{
    real = Cast<to = 9>(attention_mask)
    kept = Where(real, input_ids, pad)
    sizes = Shape(kept)
    tokens = Gather(sizes, one)
    missing = Sub(length, tokens)
    ends = Concat<axis = 0>(none, missing)
    ids = {pad}
    tower_input_ids = Cast<to = {type}>(ids)
    all = Equal(ids, ids)
    tower_attention_mask = Cast<to = {type}>(all)
}}"""
_END = """end (float[N, E] pooled) => ({output}) {{
    values = Cast<to = 1>(tower_{pooled})
    unit = LpNormalization<p = 2, axis = 1>(values)
    {result}
}}"""
_QUERIES = """<ir_version: 8, opset_import: ["" : {opset}]>
labels (float[L, {width}] embeddings) => (float[L, {width}] queries) {{
    queries = LpNormalization<p = 2, axis = 1>(embeddings)
}}"""
_HEAD = """<ir_version: 8, opset_import: ["" : {opset}]>
head (float[B, S, {width}] tokens, float[L, {width}] queries) => (float[B, L] logits)
<float scale = {{{scale!r}}}, float bias = {{{bias!r}}}, int64 first = {{0}}> {{
    photos = Gather<axis = 1>(tokens, first)
    turned = Transpose(queries)
    cosines = MatMul(photos, turned)
    scaled = Mul(cosines, scale)
    logits = Add(scaled, bias)
}}"""


def find_sizes(model: onnx.ModelProto, name: str) -> list[int]:
    """Returns the sizes of an input, 0 for any. Raises ExportError if there is no such input."""
    found = [value for value in model.graph.input if value.name == name]
    sizes = [dim.dim_value for value in found for dim in value.type.tensor_type.shape.dim]
    if len(sizes) < 2:
        raise ExportError(f"the graph has no input {name} with sizes")
    return sizes


def find_kind(model: onnx.ModelProto) -> Kind:
    """Returns what a graph's outputs show."""
    clip = any(output.name in OUTPUTS["clip"] for output in model.graph.output)
    return "clip" if clip else "siglip"


def wrap_images(model: onnx.ModelProto, kind: Kind, spec: InputConfig) -> None:
    """Changes a graph into `images` uint8 [B, H, W, 3] -> `tokens` float32 [B, 1, E] of length 1.

    Raises ExportError if it is no image tower of this kind.
    """
    element = _check(model, kind, "pixel_values", set())
    front = _IMAGES.format(height=spec.height, width=spec.width, type=element)
    mean, std = (255 * np.array(values).reshape(3, 1, 1) for values in (spec.mean, spec.std))
    constants = {"mean": mean.astype(np.float32), "scale": (1 / std).astype(np.float32)}
    constants |= {"places": np.array([0, 1, -1])}
    end = {"output": "float[B, 1, E] tokens", "result": "tokens = Reshape(unit, places)"}
    _wrap(model, kind, front, end, constants)


def wrap_texts(model: onnx.ModelProto, kind: Kind, pad: int, length: int) -> None:
    """Changes a graph into `input_ids` and `attention_mask` int64 [L, T] -> `embeddings` [L, E].

    `length` is the most tokens of a text. Raises ExportError if it is no text tower of this kind.
    """
    element = _check(model, kind, "input_ids", {"attention_mask"})
    fixed = find_sizes(model, "input_ids")[1]
    padded = kind == "siglip" or fixed
    front = _TEXTS.format(type=element, pad="Pad(kept, ends, pad)" if padded else "Identity(kept)")
    constants = {"pad": np.array(pad), "one": np.array([1]), "none": np.zeros(3, np.int64)}
    constants["length"] = np.array([fixed or length])
    end = {"output": "float[L, E] embeddings", "result": "embeddings = Identity(unit)"}
    _wrap(model, kind, front, end, constants)


def make_heads(width: int, scale: float, bias: float) -> dict[GraphName, onnx.ModelProto]:
    """Returns label encoder and open head: embeddings -> queries -> scale * cosine + bias."""
    facts = {"opset": OPSET, "width": width, "scale": scale, "bias": bias}
    return {
        "label_encoder": parse_model(_QUERIES.format(**facts)),
        "open_head": parse_model(_HEAD.format(**facts)),
    }


def _check(model: onnx.ModelProto, kind: Kind, needed: str, optional: set[str]) -> int:
    """Returns the element type of the inputs."""
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in stored]
    outputs = {value.name for value in model.graph.output}
    names = {value.name for value in inputs}
    if needed not in names or names - optional - {needed} or outputs.isdisjoint(OUTPUTS[kind]):
        raise ExportError(
            f"the graph maps {', '.join(sorted(names))} to {', '.join(sorted(outputs))}; a tower "
            f"of {kind} maps {needed} to {' or '.join(OUTPUTS[kind])}"
        )
    fixed = find_sizes(model, needed)[0]
    opset = next((entry.version for entry in model.opset_import if not entry.domain), 0)
    if fixed or opset < _OLDEST:
        raise ExportError(
            f"the graph has operator set {opset} and takes {fixed or 'any number of'} {needed} at "
            f"a time; it must have {_OLDEST} or later and take any number"
        )
    return next(each.type.tensor_type.elem_type for each in inputs if each.name == needed)


def _wrap(
    model: onnx.ModelProto,
    kind: Kind,
    front: str,
    end: dict[str, str],
    constants: dict[str, NDArray[Any]],
) -> None:
    graph = model.graph
    names = [value.name for value in graph.output]
    pooled = next(name for name in OUTPUTS[kind] if name in names)
    first, last = parse_graph(front), parse_graph(_END.format(pooled=pooled, **end))
    compose.add_prefix_graph(graph, _PREFIX, inplace=True)
    nodes = [*first.node, *graph.node, *last.node]
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    graph.input.extend(first.input)
    graph.output.extend(last.output)
    graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in constants.items())
