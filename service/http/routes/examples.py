"""Photos that show a label, and photos that do not: it learns from them, or gets a threshold."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from service import errors
from service.calibration import find_threshold
from service.fields import LabelText
from service.http.requests.body import cancel_on_disconnect
from service.http.requests.parameters import KNOWN_NAMES, Served
from service.http.requests.uploads import decode_base64, read_examples
from service.http.responses import schemas
from service.http.responses.openapi import TAG, document_examples, document_problems, document_write
from service.http.routes import labels
from service.http.routes.predict import PHOTO_PROBLEMS, label_or_fail
from service.http.security.keys import PREDICT
from service.http.security.rates import LIMITED
from service.pipeline.learning import describe_learnt, learn_label
from service.pipeline.pipeline import Pipeline
from service.pipeline.prediction import Prediction
from service.pipeline.selection import Selection
from service.question import Question
from service.scheduling.tasks import collect_in_order

_FORM_PROBLEMS = (*PHOTO_PROBLEMS, errors.BodyError, errors.MissingField, errors.UnknownField)
_CHANGE_PROBLEMS = (
    *labels.WRITE_PROBLEMS,
    *(errors.InvalidParameters, errors.NoBackground, errors.ScoresCompete),
    *(errors.LabelSetChanged, errors.LabelSetNotFound),
)

Name = labels.Name
Label = Annotated[LabelText, Query(description="Name of the label.")]

router = APIRouter(prefix="/labels", tags=["labels"])


@router.post(
    "/{name}/examples",
    response_model=schemas.LearntAnswer,
    dependencies=labels.WRITING,
    responses={
        **document_write(schemas.LearntAnswer),
        **document_problems(
            *(*_CHANGE_PROBLEMS, *_FORM_PROBLEMS, errors.ImageError),
            *(errors.InvalidLabelSet, errors.TextNotEncodable, errors.TooManyLabelSets),
        ),
    },
    openapi_extra={**document_examples(), **labels.ON_CHANGING},
)
async def add_examples(
    request: Request,
    served: Served,
    name: Name,
    label: Label,
    replace: Annotated[bool, Query(description="First delete what it has learnt.")] = False,
) -> Response:
    """Learns a label from up to 200 photos; makes the label, and the set, if there is none.

    Photos add up over requests; the same photo, or nearly the same, counts once. They are not
    stored, only sums of their embeddings. If a photo cannot be used, nothing is learnt.
    """
    pipeline = served.pipeline
    pipeline.catalogue.for_learning(name)  # before the photos are read
    sent = await read_examples(request, served.settings)
    photos = [[*map(decode_base64, group)] for group in sent]
    with pipeline.admit():
        version = await labels.demand_version(request, pipeline.catalogue, name)
        work = learn_label(pipeline, name, label, *photos, replace=replace, if_version=version)
        result, *scores = await cancel_on_disconnect(request, work)
        groups = ([schemas.PhotoScore(score=score) for score in group] for group in scores)
        scored = dict(zip(("positive", "negative"), groups, strict=True))
        answer = schemas.LearntAnswer(**describe_learnt(result, label), **scored)
        return await labels.answer_set(request, result.labels, answer, created=result.created)


@router.delete(
    "/{name}/examples",
    response_model=schemas.LabelSetAnswer,
    dependencies=labels.WRITING,
    responses={HTTPStatus.OK.value: TAG, **document_problems(*_CHANGE_PROBLEMS, errors.NoExamples)},
    openapi_extra=labels.ON_CHANGING,
)
async def delete_examples(request: Request, served: Served, name: Name, label: Label) -> Response:
    """Removes all that a label has learnt from photos, by examples and by tags.

    The label and its text stay. Returns the set.
    """
    pipeline = served.pipeline
    with pipeline.admit():
        version = await labels.demand_version(request, pipeline.catalogue, name)
        work = pipeline.catalogue.writable(name).delete_examples(name, label, version)
        return await labels.answer_set(request, await cancel_on_disconnect(request, work))


@router.post(
    "/{name}/calibrate",
    dependencies=[*PREDICT, LIMITED, KNOWN_NAMES],
    responses=document_problems(*labels.NAME_PROBLEMS, *_FORM_PROBLEMS, errors.UnknownLabel),
    openapi_extra=document_examples("positive"),
)
async def calibrate_label(
    request: Request,
    served: Served,
    name: Name,
    label: Label,
    precision_target: Annotated[
        float | None,
        Query(gt=0, le=1, description="Precision to reach, with 95 % confidence, not best F1."),
    ] = None,
) -> schemas.CalibrationAnswer:
    """Scores up to 200 photos, with and without a label; returns precision and recall.

    `best` has the threshold that fits them best. This changes nothing: set the threshold with
    `PATCH /labels/{name}`. If a photo cannot be used, its entry has the problem.
    """
    pipeline = served.pipeline
    pipeline.catalogue.find(name)  # 404, as of the set's other routes
    question = Question(label_set=[name], include=[label], top_k=1)
    selection = await pipeline.select(question, pipeline.make_deadline())
    positive, negative = await read_examples(request, served.settings)
    if not positive:
        raise errors.MissingField("positive")
    work = _score(pipeline, selection, [*positive, *negative])
    scored = await cancel_on_disconnect(request, work)
    scores = np.array([getattr(photo, "score", np.nan) for photo in scored], np.float64)
    usable = ~np.isnan(scores)
    targets = (np.arange(len(scored)) < len(positive))[usable].astype(np.int64)
    scores = scores[usable]
    label_set, current, best = selection.sets[0], None, None
    if targets.any():
        threshold = float(label_set.thresholds[label_set.positions[label]])
        reached = targets[scores >= threshold]
        current = schemas.OperatingPointAnswer(
            threshold=threshold,
            precision=reached.mean() if len(reached) else None,
            recall=reached.sum() / targets.sum(),
        )
        best = find_threshold(scores, targets, precision_target)
    return schemas.CalibrationAnswer(
        label_set=schemas.NameAndVersion.model_validate(label_set),
        label=label,
        current=current,
        best=best and schemas.OperatingPointAnswer.model_validate(best),
        positive=scored[: len(positive)],
        negative=scored[len(positive) :],
    )


async def _score(
    pipeline: Pipeline, selection: Selection, photos: Sequence[bytes]
) -> list[schemas.PhotoScore | schemas.ImageFailure]:
    deadline = pipeline.make_deadline()
    works = (label_or_fail(pipeline, photo, selection, deadline) for photo in photos)
    return [
        schemas.PhotoScore(score=a.labels[0].score) if isinstance(a, Prediction) else a
        for a in await collect_in_order(works, pipeline.concurrency)
    ]
