"""Traced graphs become small portable ones: constants folded, layers fused.

In: a traced model. Out: an equivalent model of standard ONNX operators. Next: `verify.py`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidProtobuf

from export.errors import ExportError
from export.graphs.pixels import fold_scale

_SMALLEST_COMPACTED = 1024  # values; a smaller tensor is not worth a Cast node


def optimise(model: onnx.ModelProto) -> onnx.ModelProto:
    """Applies ONNX Runtime's `basic` rewrites, which keep to standard operators.

    Whatever depends on the head's fixed queries alone becomes a constant here. Rewrites
    that depend on the machine are left to the service's own session.

    Raises:
        ExportError: the temporary folder does not take the graph.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3  # errors only
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(path)
        content = model.SerializeToString()
        try:
            onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except InvalidProtobuf as error:  # what a full disk is to ONNX Runtime
            size = len(content) / 1e6
            raise ExportError(f"no graph of {size:.0f} MB can be written to {folder}") from error
        optimised = onnx.load(path)
    fold_scale(optimised)
    return _tidy(optimised)


def compact_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Stores large float32 weights as float16 with a Cast behind each: half the file.

    ONNX Runtime folds the casts when it loads the model, so speed and arithmetic are those
    of float32; only the weights are rounded.
    """
    compact = onnx.ModelProto()
    compact.CopyFrom(model)
    casts = []
    for tensor in compact.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or np.prod(tensor.dims) < _SMALLEST_COMPACTED:
            continue
        name, stored = tensor.name, f"{tensor.name}.float16"
        half = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(half, stored))
        casts.append(
            helper.make_node("Cast", [stored], [name], name=f"{name}.cast", to=TensorProto.FLOAT)
        )
    nodes = [*casts, *compact.graph.node]
    del compact.graph.node[:]
    compact.graph.node.extend(nodes)
    onnx.checker.check_model(compact)
    return compact


def _tidy(model: onnx.ModelProto) -> onnx.ModelProto:
    """Drops what the tools left behind, and checks the model."""
    used = {node.domain for node in model.graph.node}
    imports = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(imports)
    del model.metadata_props[:]
    for entry in (*model.graph.node, *model.graph.value_info, *model.graph.initializer):
        del entry.metadata_props[:]
        entry.doc_string = ""
    for port in (*model.graph.input, *model.graph.output):
        del port.metadata_props[:]
    onnx.checker.check_model(model, full_check=True)
    return model
