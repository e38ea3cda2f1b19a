"""Makes traced graphs small and portable; converts them to 16-bit weights and float16."""

import copy
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import EncodeError
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidProtobuf
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.transformers.float16 import convert_float_to_float16

from export import ExportError
from export.graphs.pixels import fold_scale

_SCALES = 2  # place among the inputs of Resize
LARGEST = 2_000_000_000  # bytes of weights; an ONNX file has less than 2^31
SMALLEST_COMPACTED = 1024  # values; a smaller tensor is not worth a Cast node


def optimise(model: onnx.ModelProto, *, fold: bool = True) -> onnx.ModelProto:
    """Applies ONNX Runtime's `basic` rewrites, which produce standard operators only.

    Values that depend only on the head's fixed queries become constants, unless `fold` is off. The
    service's own session applies the rewrites that depend on the machine. Raises ExportError if the
    graph has more than 2 GB, or does not fit in the temporary folder.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3  # errors only
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(path)
        try:
            content = model.SerializeToString()
        except EncodeError as error:
            raise ExportError("a graph has more than 2 GB, the limit of an ONNX file") from error
        try:
            onnxruntime.InferenceSession(
                content,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=[] if fold else ["ConstantFolding"],
            )
        except InvalidProtobuf as error:  # ONNX Runtime's error for a full disk
            size = len(content) / 1e6
            raise ExportError(f"no graph of {size:.0f} MB can be written to {folder}") from error
        optimised = onnx.load(path)
    fold_scale(optimised)
    return _tidy(optimised)


def compact_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Stores large float32 weights as float16 with a Cast after each, which sessions fold."""
    compact = copy.deepcopy(model)
    casts = []
    for tensor in compact.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or np.prod(tensor.dims) < SMALLEST_COMPACTED:
            continue
        name, stored = tensor.name, f"{tensor.name}.float16"
        half = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(half, stored))
        to = TensorProto.FLOAT
        casts.append(helper.make_node("Cast", [stored], [name], name=f"{name}.cast", to=to))
    nodes = [*casts, *compact.graph.node]
    del compact.graph.node[:]
    compact.graph.node.extend(nodes)
    onnx.checker.check_model(compact)
    return compact


def halve(model: onnx.ModelProto) -> onnx.ModelProto:
    """Converts a float32 graph to float16, for GPUs; inputs and outputs keep their types."""
    half = copy.deepcopy(model)  # the converter works in place
    _separate_scales(half)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one warning for each weight too small for float16
        converted: onnx.ModelProto = convert_float_to_float16(half, keep_io_types=True)
    ONNXModel(converted).topological_sort()  # the converter appends its casts at the end
    onnx.checker.check_model(converted)
    return converted


def _separate_scales(model: onnx.ModelProto) -> None:
    """Copies the scales of each Resize, which stay float32: of shared ones, two casts are made."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Resize" and any(name in constants for name in node.input[_SCALES:3]):
            copied = copy.deepcopy(constants[node.input[_SCALES]])
            copied.name = node.input[_SCALES] = f"{node.name}.scales"
            model.graph.initializer.append(copied)


def _tidy(model: onnx.ModelProto) -> onnx.ModelProto:
    """Drops metadata that the tools left in the model, and checks it."""
    used = {node.domain for node in model.graph.node}
    imports = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(imports)
    del model.metadata_props[:]
    graph = model.graph
    for entry in (*graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        del entry.metadata_props[:]
        entry.doc_string = ""
    onnx.checker.check_model(model, full_check=True)
    return model
