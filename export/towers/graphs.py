"""Our inputs before published towers, embeddings of length 1 behind them, and the head of both."""

from collections.abc import Iterable

import onnx
from onnx import compose
from onnx.parser import parse_graph, parse_model

from export.graphs.graph import OPSET
from models.config import InputConfig, Towers
from service.bundle.card import Precision
from service.bundle.manifest import GraphName

_PREFIX = "tower_"  # of the published names, so that ours are free
# Names of embeddings in published graphs, and the kinds of their towers.
_OUTPUTS: dict[str, Towers]
_OUTPUTS = {"image_embeds": "clip", "text_embeds": "clip", "pooler_output": "siglip"}

_IMAGES = """images (uint8[B, {side}, {side}, 3] images) => (float[B, 1, E] tokens)
<float[3, 1, 1] mean = {{{mean}}}, float[3, 1, 1] std = {{{std}}}, int64[3] sizes = {{0, 1, -1}}> {{
    turned = Transpose<perm = [0, 3, 1, 2]>(images)
    pixels = Cast<to = 1>(turned)
    centred = Sub(pixels, mean)
    scaled = Div(centred, std)
    tower_pixel_values = Cast<to = {type}>(scaled)
"""
# After a text stands `pad`: SigLIP reads it too, up to a `length`; a CLIP may take any length.
_TEXTS = """texts (int64[L, T] input_ids, int64[L, T] attention_mask) => (float[L, E] embeddings)
<int64 pad = {{{pad}}}, int64[4] ends = {{0, 0, 0, {length}}}, int64[1] first = {{0}},
int64[1] last = {{{last}}}, int64[1] axis = {{1}}, int64[2] sizes = {{0, -1}}> {{
    real = Cast<to = 9>(attention_mask)
    kept = Where(real, input_ids, pad)
    padded = Pad(kept, ends, pad)
    ids = Slice(padded, first, last, axis)
    tower_input_ids = Cast<to = {type}>(ids)
    all = Equal(ids, ids)
    tower_attention_mask = Cast<to = {type}>(all)
"""
_END = """    values = Cast<to = 1>(tower_{pooled})
    unit = LpNormalization<p = 2, axis = 1>(values)
    {output} = Reshape(unit, sizes)
}}"""
_BEHIND = 3  # nodes of `_END`, which follow the tower
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


def find_embedding(outputs: Iterable[str]) -> tuple[str, Towers]:
    """Returns the output that has a photo's or text's embedding, and the kind of the tower."""
    names = list(outputs)
    for name, kind in _OUTPUTS.items():
        if name in names:
            return name, kind
    raise ValueError(f"its outputs are {', '.join(names)}, not {' or '.join(_OUTPUTS)}")


def find_sizes(model: onnx.ModelProto, kind: Towers, name: str) -> list[int]:
    """Returns the sizes of a tower's input behind the batch, 0 for any.

    Raises ValueError for a graph of another kind, or one that takes no batches of this input.
    """
    inputs = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    sizes = [dim.dim_value for dim in inputs.get(name, ())]
    _, found = find_embedding(output.name for output in model.graph.output)
    if sizes[:1] != [0] or found != kind:
        raise ValueError(
            f"it is of {found} and takes {', '.join(inputs)}; it must be of {kind} and take any "
            f"number of {name} at a time"
        )
    return sizes[1:]


def wrap_images(model: onnx.ModelProto, spec: InputConfig) -> None:
    """Changes a tower to `images` uint8 [B, H, W, 3] -> `tokens` float32 [B, 1, E] of length 1."""
    mean, std = (", ".join(str(255 * value) for value in pair) for pair in (spec.mean, spec.std))
    _wrap(model, "pixel_values", _IMAGES, output="tokens", side=spec.width, mean=mean, std=std)


def wrap_texts(model: onnx.ModelProto, pad: int, length: int) -> None:
    """Changes a tower to `input_ids` and `attention_mask` int64 [L, T] -> `embeddings` [L, E].

    Texts are padded to `length` tokens, 0: not padded.
    """
    last = length or 2**31
    _wrap(model, "input_ids", _TEXTS, output="embeddings", pad=pad, length=length, last=last)


def make_heads(width: int, scale: float, bias: float) -> dict[GraphName, dict[Precision, bytes]]:
    """Returns label encoder and open head: embeddings -> queries -> scale * cosine + bias."""
    facts = {"opset": OPSET, "width": width, "scale": scale, "bias": bias}
    graphs: dict[GraphName, str] = {"label_encoder": _QUERIES, "open_head": _HEAD}
    return {
        name: {"fp32": parse_model(text.format(**facts)).SerializeToString()}
        for name, text in graphs.items()
    }


def _wrap(model: onnx.ModelProto, given: str, text: str, **facts: object) -> None:
    graph = model.graph
    element = next(v.type.tensor_type.elem_type for v in graph.input if v.name == given)
    pooled, _ = find_embedding(output.name for output in graph.output)
    ours = parse_graph((text + _END).format(type=element, pooled=pooled, **facts))
    compose.add_prefix_graph(graph, _PREFIX, inplace=True)
    nodes = [*ours.node[:-_BEHIND], *graph.node, *ours.node[-_BEHIND:]]
    del graph.node[:], graph.input[:], graph.output[:], ours.node[:]
    graph.MergeFrom(ours)
    graph.node.extend(nodes)
