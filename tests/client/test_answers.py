"""Fields of answers and questions, and responses that are not the service's."""

import json
import pickle
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from ml_decoder_client import Answer, ClientError, ServiceProblem, UnreadableAnswer, answers
from service.bundle.card import Calibration
from service.http.responses import schemas
from service.http.routes.embed import EmbedAnswer
from service.labels.definition import OpenLabel
from tests.client.conftest import Fake
from tests.support.fake_service import ANSWER
from tests.support.photos import make_photo

PHOTO = make_photo()
# A newer service may have these.
NEWER = {"map", "overlay", "explain"}


OTHER_NAMES: dict[type, type[BaseModel]] = {
    answers.Answer: schemas.PredictAnswer,
    answers.LabelSetList: schemas.LabelSetsAnswer,
    answers.Calibration: Calibration,
    answers.LabelCalibration: schemas.CalibrationAnswer,
    answers.NewLabel: OpenLabel,
    answers.LearntLabel: schemas.LearntAnswer,
    answers.Embeddings: EmbedAnswer,
}
OURS = [each for each in vars(answers).values() if isinstance(each, type) and is_dataclass(each)]

MAY_FAIL = (answers.PhotoScore, answers.Embedding)  # the service has a model for the error


@pytest.mark.parametrize("ours", [each for each in OURS if each not in MAY_FAIL])
def test_answer_has_the_fields_of_the_service(ours: type) -> None:
    known = vars(schemas)
    same = known.get(f"{ours.__name__}Answer") or known.get(ours.__name__)
    theirs = TypeAdapter[Any](OTHER_NAMES.get(ours, same)).json_schema()["properties"]
    assert {field.name for field in fields(ours)} - NEWER == theirs.keys() - NEWER


def provoke_error(kind: Any, fake: Fake, status: int, body: bytes, **headers: str) -> ClientError:
    """Returns the error for such a response; a good request works afterwards."""
    service, url = fake
    service.answers, service.body = [(status, headers)], body
    with kind(url, retries=0) as client:
        (error,) = client.predict_many([PHOTO])
        service.answers, service.body = [(200, {})], json.dumps(ANSWER).encode()
        assert isinstance(client.predict(PHOTO), Answer)
    assert isinstance(error, ClientError)
    return error


OTHER = "HTTP 422 from a proxy or another service"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"detail": [{"loc": ["body"], "msg": "x"}]}, OTHER),
        ({"title": None, "detail": "why", "code": 7}, f"{OTHER}: why"),
        ({"title": "No", "errors": None}, "No"),
        ({"title": "No", "errors": [{"message": "x"}, 1, {"where": "a", "name": []}]}, "No"),
        ({"title": "No", "errors": [{"where": "body", "name": "a", "reason": "b"}]}, "No: a: b"),
        ([], OTHER),
        (None, OTHER),
        *((body, OTHER) for body in (b"\xff\xfe", b"[" * 200_000, b"")),
    ],
)
def test_problem_takes_the_fields_that_have_the_right_type(
    kind: Any, fake: Fake, body: Any, text: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    problem = provoke_error(kind, fake, 422, content)
    assert isinstance(problem, ServiceProblem)
    assert (problem.status, problem.code, str(problem)) == (422, "", text)


def test_problem_can_be_pickled() -> None:
    values = [{"where": "query", "name": "top_k", "reason": "too small"}]
    body = {"title": "No", "code": "no", "errors": values, "request_id": "7"}
    problem = ServiceProblem(422, body)
    again = pickle.loads(pickle.dumps(problem))
    assert (type(again), str(again)) == (ServiceProblem, "No: top_k: too small")
    assert vars(again) == vars(problem)


@pytest.mark.parametrize(
    ("body", "headers", "reason"),
    [
        (b"<html>", {}, "unexpected response of {url}/predict: not JSON"),
        (b"", {}, "not JSON"),
        (b"[" * 200_000, {}, "not JSON"),
        (b"[]", {}, "not an object"),
        (json.dumps({**ANSWER, "image": {"width": 2}}).encode(), {}, "image.height: missing"),
        (b"junk", {"Content-Encoding": "gzip"}, "cannot decode the response of {url}"),
    ],
)
def test_success_with_another_body_is_unreadable(
    kind: Any, fake: Fake, body: bytes, headers: dict[str, str], reason: str
) -> None:
    error = provoke_error(kind, fake, 200, body, **headers)
    assert isinstance(error, UnreadableAnswer)
    assert reason.format(url=fake[1]) in str(error)
    assert "\n" not in str(error)
