"""`POST /labels/{name}/calibrate`: the threshold of a label, from photos with and without it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request

from service import errors
from service.calibration import find_threshold
from service.fields import LabelText
from service.http.requests.body import cancel_on_disconnect
from service.http.requests.parameters import KNOWN_NAMES, Host
from service.http.requests.uploads import read_examples
from service.http.responses.examples import CalibrationAnswer, OperatingPointAnswer, PhotoScore
from service.http.responses.openapi import document_examples, document_problems
from service.http.responses.schemas import ImageFailure, NameAndVersion
from service.http.routes.labels import NAME_PROBLEMS, Name
from service.http.routes.predict import label_or_fail
from service.http.security.keys import PREDICT
from service.http.security.rates import LIMITED
from service.pipeline.pipeline import Pipeline
from service.pipeline.selection import Selection
from service.question import Question
from service.scheduling.tasks import run_in_order

PHOTO_PROBLEMS = (
    errors.CrossSite,
    errors.BodyError,
    errors.MissingField,
    errors.UnknownField,
    errors.TooManyImages,
    errors.QueueFull,
    errors.InferenceFailed,
    errors.OutOfMemory,
    errors.DeadlineExceeded,
)

router = APIRouter(prefix="/labels", tags=["labels"])


@router.post(
    "/{name}/calibrate",
    summary="Find the threshold of a label",
    dependencies=[*PREDICT, LIMITED, KNOWN_NAMES],
    responses=document_problems(*NAME_PROBLEMS, errors.UnknownLabel, *PHOTO_PROBLEMS),
    openapi_extra=document_examples(required="positive"),
)
async def calibrate_label(
    request: Request,
    host: Host,
    name: Name,
    label: Annotated[LabelText, Query(description="A label of the set.")],
    precision_target: Annotated[
        float | None,
        Query(
            gt=0,
            le=1,
            description="Find the lowest threshold with at least this precision, with 95 % "
            "confidence, instead of that of best F1.",
        ),
    ] = None,
) -> CalibrationAnswer:
    """Scores up to 200 photos, with and without a label; returns precision and recall.

    `best` has the threshold that fits them best. This changes nothing: set the threshold with
    `PATCH /labels/{name}`. If a photo cannot be used, its entry has the problem.
    """
    pipeline = host.pipeline
    pipeline.catalogue.find(name)  # 404, as of the set's other routes
    question = Question(label_set=[name], include=[label], top_k=1)
    selection = await pipeline.select(question, pipeline.make_deadline())
    positive, negative = await read_examples(request, host.settings)
    if not positive:
        raise errors.MissingField("positive")
    work = _score(pipeline, selection, [*positive, *negative])
    scored = await cancel_on_disconnect(request, work)
    scores = np.array([getattr(each, "score", np.nan) for each in scored], np.float64)
    usable = ~np.isnan(scores)
    targets = (np.arange(len(scored)) < len(positive))[usable].astype(np.int64)
    scores = scores[usable]
    labels, current, best = selection.sets[0], None, None
    if targets.any():
        threshold = float(labels.thresholds[labels.positions[label]])
        found = targets[scores >= threshold]
        current = OperatingPointAnswer(
            threshold=threshold,
            precision=found.mean() if len(found) else None,
            recall=found.sum() / targets.sum(),
        )
        best = find_threshold(scores, targets, precision_target)
    return CalibrationAnswer(
        label_set=NameAndVersion.model_validate(labels),
        label=label,
        current=current,
        best=best and OperatingPointAnswer.model_validate(best),
        positive=scored[: len(positive)],
        negative=scored[len(positive) :],
    )


async def _score(
    pipeline: Pipeline, selection: Selection, photos: Sequence[bytes]
) -> list[PhotoScore | ImageFailure]:
    deadline = pipeline.make_deadline()
    works = (label_or_fail(pipeline, photo, selection, deadline) for photo in photos)
    async with aclosing(run_in_order(works, pipeline.concurrency)) as results:
        return [
            each if isinstance(each, ImageFailure) else PhotoScore(score=each.labels[0].score)
            async for each in results
        ]
