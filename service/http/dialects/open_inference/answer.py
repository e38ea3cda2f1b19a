"""The answers of `/v2`: metadata, and scores as the requested outputs.

`scores` is FP32 [B, L] and `labels` names its L columns; with `classification`, `scores` is
BYTES [B, n] of `score:column:label`, best first.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json
from starlette.responses import Response

from service.bundle.card import ModelCard
from service.http.dialects.open_inference import request
from service.http.requests.body import BYTES, JSON
from service.pipeline.prediction import Prediction
from service.pipeline.selection import Selection


def describe_model(card: ModelCard, name: str) -> dict[str, Any]:
    """Returns the metadata of the bundle's model, by the name that the client asked for."""
    inputs = ((request.IMAGE, "BYTES", [-1]), (request.PIXELS, "UINT8", [-1, *card.input.shape]))
    outputs = ((request.SCORES, "FP32", [-1, -1]), (request.LABELS, "BYTES", [-1]))
    return {
        **{"name": name, "versions": [card.version], "platform": "onnxruntime_onnx"},
        "inputs": [{"name": n, "datatype": d, "shape": s} for n, d, s in inputs],
        "outputs": [{"name": n, "datatype": d, "shape": s} for n, d, s in outputs],
    }


def write_infer_answer(
    asked: request.InferBody,
    model_name: str,
    model_version: str,
    selection: Selection,
    predictions: Sequence[Prediction],
) -> Response:
    """Returns JSON, then bytes of binary outputs; predictions must have all labels selected."""
    names = [part.labels.names[position] for part in selection.parts for position in part.chosen]
    columns = {name: column for column, name in enumerate(names)}
    scores = np.zeros((len(predictions), len(names)), np.float32)
    for row, prediction in enumerate(predictions):
        for label in prediction.labels:
            scores[row, columns[label.label]] = label.score
    written = [_write_output(output, names, scores) for output in asked.outputs]
    head: dict[str, Any] = {
        "model_name": model_name,
        "model_version": model_version,
        "parameters": {"label_set": selection.name, "label_set_version": selection.version},
        "outputs": [tensor for tensor, _ in written],
    }
    if selection.hidden:
        head["parameters"]["hidden"] = selection.describe_hidden()
    if asked.id is not None:
        head["id"] = asked.id
    # `json` takes a second for 100,000 scores and stops all threads meanwhile.
    text = to_json(head)
    if not any(output.parameters.binary_data for output in asked.outputs):
        return Response(text, media_type=JSON)
    return Response(
        b"".join([text, *(raw for _, raw in written)]),
        headers={request.HEADER_LENGTH: str(len(text))},
        media_type=BYTES,
    )


def _write_output(
    output: request.OutputTensor, names: Sequence[str], scores: NDArray[np.float32]
) -> tuple[dict[str, Any], bytes]:
    """Returns a tensor's JSON, and its bytes if it is binary."""
    datatype, shape, values = "BYTES", [len(names)], list[Any](names)
    classes = output.parameters.classification
    if output.name == request.SCORES and classes is None:
        datatype, shape, values = "FP32", [*scores.shape], scores.ravel().tolist()
    elif output.name == request.SCORES:
        best = np.argsort(-scores, axis=1, kind="stable")[:, :classes]
        shape = [*best.shape]
        values = [
            f"{scores[row, column]:.6f}:{column}:{names[column]}"
            for row, columns in enumerate(best)
            for column in columns
        ]
    tensor: dict[str, Any] = {"name": output.name, "datatype": datatype, "shape": shape}
    if not output.parameters.binary_data:
        # A generator, so that other threads run between the values of long outputs.
        return {**tensor, "data": (value for value in values)}, b""
    if datatype == "FP32":
        raw = scores.astype("<f4").tobytes()
    else:
        raw = b"".join(struct.pack("<I", len(text)) + text for text in map(str.encode, values))
    return {**tensor, "parameters": {"binary_data_size": len(raw)}}, raw
