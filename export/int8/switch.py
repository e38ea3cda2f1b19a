"""Each layer in 8 bits alone: a graph that is told which.

In: a float32 graph and the same in int8. Out: the float32 graph, with every layer's rounded twin
beside it. Next: `search.py` ranks the layers, in one session and not in one for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import NodeProto, TensorProto, compose, helper

LAYER = "layer"
"""Input int64: the place of the layer that is in 8 bits, or `NO_LAYER`."""

NO_LAYER = -1

_TWIN = "int8."
_ROUNDERS = ("QuantizeLinear", "DequantizeLinear")


def switch_layers(
    model: onnx.ModelProto, int8: onnx.ModelProto, layers: Sequence[str]
) -> onnx.ModelProto:
    """Returns the float32 graph with one more input, `LAYER`.

    Of the chosen layer the input, the weights and the output are rounded.

    Args:
        model: float32 graph.
        int8: the same with all layers in int8.
        layers: names of nodes in both.
    """
    rounded = compose.add_prefix(int8, _TWIN, rename_inputs=False)
    twins = _find_twins(rounded)
    switched = onnx.ModelProto()
    switched.CopyFrom(model)
    del switched.graph.node[:]
    for node in model.graph.node:
        if node.name in layers:
            place = layers.index(node.name)
            switched.graph.node.extend(_switch(node, twins[node.name], place))
        else:
            switched.graph.node.append(node)
    switched.graph.input.append(helper.make_tensor_value_info(LAYER, TensorProto.INT64, []))
    switched.graph.initializer.extend(rounded.graph.initializer)
    return switched


def _find_twins(rounded: onnx.ModelProto) -> dict[str, list[NodeProto]]:
    """Returns the nodes of each layer in int8: they read values of the float graph."""
    makers = {name: node for node in rounded.graph.node for name in node.output}
    rounders = {n.input[0]: n for n in rounded.graph.node if n.op_type in _ROUNDERS}
    twins = {}
    for node in rounded.graph.node:
        inputs = [makers[name] for name in node.input if name in makers]
        exact = [_read_exact(makers[made.input[0]]) for made in inputs if made.input[0] in makers]
        twin = [*exact, *inputs, node]
        while twin[-1].output[0] in rounders:
            twin.append(rounders[twin[-1].output[0]])
        twins[node.name.removeprefix(_TWIN)] = twin
    return twins


def _read_exact(quantise: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(quantise)
    copy.input[0] = copy.input[0].removeprefix(_TWIN)
    return copy


def _switch(node: NodeProto, twin: Sequence[NodeProto], place: int) -> list[NodeProto]:
    exact = NodeProto()
    exact.CopyFrom(node)
    exact.output[0] = f"float.{node.output[0]}"
    chosen = f"{node.name}.chosen"
    return [
        helper.make_node("Constant", [], [f"{node.name}.place"], value_int=place),
        helper.make_node("Equal", [LAYER, f"{node.name}.place"], [chosen]),
        helper.make_node(
            "If",
            [chosen],
            list(node.output),
            then_branch=_make_branch("int8", twin),
            else_branch=_make_branch("float", [exact]),
        ),
    ]


def _make_branch(name: str, nodes: Sequence[NodeProto]) -> onnx.GraphProto:
    result = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    return helper.make_graph(list(nodes), name, [], [result])
