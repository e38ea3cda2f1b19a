"""Triton's `config.pbtxt`: the text form of `inference.ModelConfig` (`model_config.proto`).

There is no batching delay: as in the service, a free instance runs all requests that wait.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_BATCH_SIZE = 16
_MAX_QUEUE_SIZE = 64  # as the service's own; further requests are refused at once

Message = Mapping[str, object]  # fields of a protobuf message; a list repeats its field


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model."""

    name: str  # as in the graph
    data_type: str  # Triton's name, `TYPE_FP32` for example
    sizes: tuple[int, ...]  # of one item, without the batch; -1 is any
    labels_file: str | None = None  # file with a name for each value, one a line

    def describe(self) -> Message:
        """Returns the `ModelInput` or `ModelOutput`."""
        labels = {} if self.labels_file is None else {"label_filename": self.labels_file}
        return {"name": self.name, "data_type": self.data_type, "dims": self.sizes, **labels}


def make_step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Message:
    """Returns an ensemble's step; the maps go from the model's tensor names to the ensemble's."""
    maps = {"input_map": inputs, "output_map": outputs}
    entries = {
        field: [{"key": theirs, "value": ours} for theirs, ours in names.items()]
        for field, names in maps.items()
    }
    return {"model_name": model, "model_version": -1, **entries}


def write_model_config(name: str, source: Tensor, target: Tensor, *, queue: bool) -> str:
    """Returns the configuration of a graph; `queue` is for the first model of a request only."""
    policy: Message = {"default_queue_policy": {"max_queue_size": _MAX_QUEUE_SIZE}} if queue else {}
    zeros = {"data_type": source.data_type, "dims": source.sizes, "zero_data": True}
    warmups = [
        {"name": str(size), "batch_size": size, "inputs": {"key": source.name, "value": zeros}}
        for size in (1, MAX_BATCH_SIZE)
    ]
    running: Message = {
        "backend": "onnxruntime",
        "dynamic_batching": policy,
        "model_warmup": [] if -1 in source.sizes else warmups,
    }
    return _write(name, source, [target], running)


def write_ensemble_config(
    name: str, source: Tensor, targets: Sequence[Tensor], steps: Sequence[Message]
) -> str:
    """Returns the configuration of an ensemble: one request runs all steps."""
    running = {"platform": "ensemble", "ensemble_scheduling": {"step": steps}}
    return _write(name, source, targets, running)


def _write(name: str, source: Tensor, targets: Sequence[Tensor], running: Message) -> str:
    ports = {"input": source.describe(), "output": [target.describe() for target in targets]}
    return _format({"name": name, "max_batch_size": MAX_BATCH_SIZE, **ports, **running})


def _format(message: Message, indent: str = "") -> str:
    lines = []
    for name, value in message.items():
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, Mapping):
                inner = _format(item, f"{indent}  ")
                lines.append(f"{indent}{name} {{\n{inner}{indent}}}\n")
            else:  # as in JSON, except that names of enumerations have no quotes
                text = item if name == "data_type" else json.dumps(item)
                lines.append(f"{indent}{name}: {text}\n")
    return "".join(lines)
