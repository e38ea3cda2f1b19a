"""The inference answer: scores -> the outputs that were asked for.

In: predictions over every label of a selection. Out: the response: JSON, with the bytes of binary
outputs behind it. `scores` is FP32 [B, L], `labels` names its L columns; with `classification`,
`scores` is BYTES [B, n] of `score:column:label`, best first.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json
from starlette.responses import Response

from service.bundle.card import ModelCard
from service.http.open_inference.request import HEADER_LENGTH, LABELS, InferRequest, Output
from service.http.requests.uploads import BYTES, JSON
from service.pipeline.prediction import Prediction
from service.pipeline.selection import Selection

ScoreArray = NDArray[np.float32]
WrittenTensor = tuple[dict[str, Any], bytes]
"""A tensor's JSON, and its bytes where it is binary."""


def write_infer_answer(
    asked: InferRequest, card: ModelCard, selection: Selection, predictions: Sequence[Prediction]
) -> Response:
    """Returns the response.

    Args:
        asked: the request.
        card: the model that answers.
        selection: what the labels are from.
        predictions: B predictions, each with every label of the selection.
    """
    names = list_names(selection)
    scores = collect_scores(names, predictions)
    written = [_write_output(output, names, scores) for output in asked.outputs]
    head: dict[str, Any] = {
        "model_name": card.name,
        "model_version": card.version,
        "parameters": {"label_set": selection.name, "label_set_version": selection.version},
        "outputs": [tensor for tensor, _ in written],
    }
    if asked.id is not None:
        head["id"] = asked.id
    # Of a hundred thousand scores json would take a second, and keep every thread waiting.
    text = to_json(head)
    if not any(output.binary for output in asked.outputs):
        return Response(text, media_type=JSON)
    return Response(
        b"".join([text, *(raw for _, raw in written)]),
        headers={HEADER_LENGTH: str(len(text))},
        media_type=BYTES,
    )


def list_names(selection: Selection) -> list[str]:
    """Returns the L names of the columns: the labels of each set in their order."""
    return [part.labels.names[position] for part in selection.parts for position in part.chosen]


def collect_scores(names: Sequence[str], predictions: Sequence[Prediction]) -> ScoreArray:
    """Returns scores float32 [B, L], 0..1, in the order of the names."""
    columns = {name: column for column, name in enumerate(names)}
    scores = np.zeros((len(predictions), len(names)), np.float32)
    for row, prediction in enumerate(predictions):
        for label in prediction.labels:
            scores[row, columns[label.label]] = label.score
    return scores


def _write_output(output: Output, names: Sequence[str], scores: ScoreArray) -> WrittenTensor:
    if output.name == LABELS:
        return _write_texts(output, [len(names)], list(names))
    if output.classes is not None:
        classes = _classify(output.classes, names, scores)
        shape = [len(classes), len(classes[0])]
        return _write_texts(output, shape, [text for row in classes for text in row])
    raw = scores.astype("<f4").tobytes()
    return _write_tensor(output, "FP32", list(scores.shape), scores.ravel().tolist(), raw)


def _classify(count: int, names: Sequence[str], scores: ScoreArray) -> list[list[str]]:
    best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return [
        [f"{scores[row, column]:.6f}:{column}:{names[column]}" for column in columns]
        for row, columns in enumerate(best)
    ]


def _write_texts(output: Output, shape: list[int], texts: list[str]) -> WrittenTensor:
    encoded = [text.encode() for text in texts]
    raw = b"".join(struct.pack("<I", len(text)) + text for text in encoded)
    return _write_tensor(output, "BYTES", shape, texts, raw)


def _write_tensor(
    output: Output, datatype: str, shape: list[int], values: list[Any], raw: bytes
) -> WrittenTensor:
    tensor: dict[str, Any] = {"name": output.name, "datatype": datatype, "shape": shape}
    if output.binary:
        return {**tensor, "parameters": {"binary_data_size": len(raw)}}, raw
    return {**tensor, "data": values}, b""
