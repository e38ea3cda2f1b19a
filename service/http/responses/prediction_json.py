"""Prediction JSON: what the pipeline found -> the bytes of an answer.

In: predictions and the selection they were made for. Out: JSON, as `PredictAnswer` and
`BatchAnswer` in `schemas.py` describe it. The values come from our own stages, so they are written
as they are: to put them into those models first would check each again, at the price of all the
rest of an answer. Next: `routes/predict.py`, which sends it.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pydantic_core import to_json

from service.http.responses.schemas import ImageFailure
from service.pipeline.explanation import Explanation
from service.pipeline.pipeline import Pipeline
from service.pipeline.prediction import Prediction
from service.pipeline.scoring import ScoredLabel
from service.pipeline.selection import Selection

Fields = dict[str, Any]


def write_prediction(
    pipeline: Pipeline, selection: Selection, prediction: Prediction, request_id: str
) -> bytes:
    """Returns a `PredictAnswer`."""
    answer = {
        **_describe_model(pipeline, selection),
        **_describe_image(prediction),
        "request_id": request_id,
    }
    return to_json(answer)


async def write_batch(
    pipeline: Pipeline,
    selection: Selection,
    results: Sequence[Prediction | ImageFailure],
    request_id: str,
) -> bytes:
    """Returns a `BatchAnswer`; its results keep their order."""
    written = []
    for each in results:
        described = _describe_image(each) if isinstance(each, Prediction) else each
        written.append(to_json(described, exclude_none=True))
        # Thousands of labels take a while; between two images the event loop answers others.
        await asyncio.sleep(0)
    # What has been written already can only be put into what is written.
    model = to_json(_describe_model(pipeline, selection)).removesuffix(b"}")
    ending = to_json({"request_id": request_id}).removeprefix(b"{")
    return b'%b,"results":[%b],%b' % (model, b",".join(written), ending)


def _describe_model(pipeline: Pipeline, selection: Selection) -> Fields:
    card = pipeline.bundle.card
    return {
        "model": {"name": card.name, "version": card.version},
        "label_set": {"name": selection.name, "version": selection.version},
        "label_sets": [
            {"name": labels.name, "version": labels.version} for labels in selection.sets
        ],
    }


def _describe_image(prediction: Prediction) -> Fields:
    labels, explanations = prediction.labels, prediction.explanations
    explained = [
        _describe_explained(label, explanation)
        for label, explanation in zip(labels, explanations, strict=False)
    ]
    return {
        "image": {"width": prediction.width, "height": prediction.height},
        # A dataclass that is handed over as it is costs three times as much.
        "labels": [*explained, *map(vars, labels[len(explained) :])],
        "timings": prediction.timings,
    }


def _describe_explained(label: ScoredLabel, explanation: Explanation) -> Fields:
    fields = {**asdict(label), "map": explanation.list_cells()}
    if explanation.overlay is not None:
        text = base64.b64encode(explanation.overlay).decode()
        fields["overlay"] = f"data:image/png;base64,{text}"
    return fields
