"""Triton's `config.pbtxt`: the text form of `inference.ModelConfig` (`model_config.proto`).

There is no batching delay: as in the service, a free instance runs all requests that wait.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_BATCH_SIZE = 16
# As the service's own queue size; further requests are refused at once.
_MAX_QUEUE_SIZE = 64


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model.

    Attributes:
        name: as in the graph.
        data_type: Triton's name, `TYPE_FP32` for example.
        sizes: of one item, without the batch; -1 is any.
        labels_file: file with a name for each value, one a line.
    """

    name: str
    data_type: str
    sizes: tuple[int, ...]
    labels_file: str | None = None


@dataclass(frozen=True)
class Step:
    """A model of an ensemble.

    Attributes:
        model: its name.
        inputs: the model's name of a tensor -> the ensemble's.
        outputs: the same for its outputs.
    """

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def write_model_config(name: str, source: Tensor, target: Tensor, *, queue: bool) -> str:
    """Returns the configuration of one ONNX graph, with dynamic batching and a warm-up.

    `queue` limits the queue, for the model that requests enter first.
    """
    policy = f" default_queue_policy {{ max_queue_size: {_MAX_QUEUE_SIZE} }} " if queue else " "
    lines = [
        f"name: {_quote(name)}",
        'backend: "onnxruntime"',
        f"max_batch_size: {MAX_BATCH_SIZE}",
        f"input [ {_write_tensor(source)} ]",
        f"output [ {_write_tensor(target)} ]",
        f"dynamic_batching {{{policy}}}",
    ]
    if -1 not in source.sizes:
        zeros = f"data_type: {source.data_type} {_write_sizes(source)} zero_data: true"
        value = f"inputs {{ key: {_quote(source.name)} value: {{ {zeros} }} }}"
        lines += [
            f'model_warmup [ {{ name: "{size}" batch_size: {size} {value} }} ]'
            for size in (1, MAX_BATCH_SIZE)
        ]
    return "\n".join(lines) + "\n"


def write_ensemble_config(
    name: str, source: Tensor, targets: Sequence[Tensor], steps: Sequence[Step]
) -> str:
    """Returns the configuration of an ensemble: one request runs all steps."""
    lines = [
        f"name: {_quote(name)}",
        'platform: "ensemble"',
        f"max_batch_size: {MAX_BATCH_SIZE}",
        f"input [ {_write_tensor(source)} ]",
        *(f"output [ {_write_tensor(target)} ]" for target in targets),
        "ensemble_scheduling {",
        *(f"  step [ {_write_step(step)} ]" for step in steps),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _write_step(step: Step) -> str:
    inputs = _write_map("input_map", step.inputs)
    outputs = _write_map("output_map", step.outputs)
    return f"{{ model_name: {_quote(step.model)} model_version: -1 {inputs} {outputs} }}"


def _write_map(field: str, names: Mapping[str, str]) -> str:
    return " ".join(
        f"{field} {{ key: {_quote(theirs)} value: {_quote(ours)} }}"
        for theirs, ours in names.items()
    )


def _write_tensor(tensor: Tensor) -> str:
    labels = "" if tensor.labels_file is None else f" label_filename: {_quote(tensor.labels_file)}"
    kind = f"name: {_quote(tensor.name)} data_type: {tensor.data_type}"
    return f"{{ {kind} {_write_sizes(tensor)}{labels} }}"


def _write_sizes(tensor: Tensor) -> str:
    return f"dims: [ {', '.join(map(str, tensor.sizes))} ]"


def _quote(text: str) -> str:
    return json.dumps(text)  # the text format quotes as JSON does
