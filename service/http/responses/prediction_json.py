"""Writes predictions as JSON; pydantic models would take as long as the rest of an answer."""

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from service.http.responses.schemas import MAX_HIDDEN, ImageFailure
from service.pipeline.pipeline import Pipeline
from service.pipeline.prediction import Prediction
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
        # Thousands of labels take milliseconds: let the event loop serve others between images.
        await asyncio.sleep(0)
    # The items are already JSON bytes, so they are spliced in.
    model = to_json(_describe_model(pipeline, selection)).removesuffix(b"}")
    ending = to_json({"request_id": request_id}).removeprefix(b"{")
    return b'%b,"results":[%b],%b' % (model, b",".join(written), ending)


def _describe_model(pipeline: Pipeline, selection: Selection) -> Fields:
    card = pipeline.bundle.card
    sets: list[Fields] = [
        {"name": labels.name, "version": labels.version} for labels in selection.sets
    ]
    if selection.hidden:
        for described in sets:
            if lost := selection.hidden.get(described["name"]):
                described |= {"num_hidden": len(lost), "hidden": lost[:MAX_HIDDEN]}
    return {
        "model": {"name": card.name, "version": card.version},
        "label_set": {"name": selection.name, "version": selection.version},
        "label_sets": sets,
    }


def _describe_image(prediction: Prediction) -> Fields:
    return prediction.describe(
        f"data:image/png;base64,{base64.b64encode(explanation.overlay).decode()}"
        for explanation in prediction.explanations
        if explanation.overlay is not None
    )
