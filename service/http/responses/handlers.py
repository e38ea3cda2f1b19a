"""Answers to errors: whatever a route or the framework raises leaves as a problem.

In: an exception and its request. Out: `application/problem+json` with the headers that belong to
its status; below `/v2`, the same in that protocol's shape. `add_problem_handlers` covers what is
expected; what is not is left to `access.py`, which sends `answer_unexpected`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match

from service.errors import ServiceError
from service.http.requests.errors import (
    InvalidParameters,
    MethodNotAllowed,
    RequestError,
    RouteNotFound,
    list_values,
)
from service.http.responses.open_inference import OpenInferenceError, is_open_inference
from service.http.responses.problems import (
    INTERNAL_ERROR,
    Problem,
    ProblemKind,
    describe_kind,
    describe_problem,
    find_kind,
    tell_retry_seconds,
)

PROBLEM_JSON = "application/problem+json"

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_FRAMEWORK_ERRORS: Mapping[int, type[RequestError]] = {
    HTTPStatus.NOT_FOUND: RouteNotFound,
    HTTPStatus.METHOD_NOT_ALLOWED: MethodNotAllowed,
}

logger = logging.getLogger(__name__)


class ProblemResponse(JSONResponse):
    """An `application/problem+json` answer."""

    media_type = PROBLEM_JSON

    def __init__(self, kind: ProblemKind, problem: Problem) -> None:
        """Takes the status and the headers from `kind`, the body from `problem`."""
        content = problem.model_dump(exclude_none=True)
        super().__init__(content, kind.status, kind.headers)


def add_problem_handlers(app: FastAPI) -> None:
    """Makes `app` answer every error of ours and of the framework with a problem."""
    app.add_exception_handler(ServiceError, _answer_service_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)


def answer_unexpected(request: Request) -> JSONResponse:
    """Returns the 500 for what nobody expected; it says nothing of the cause."""
    problem = describe_kind(INTERNAL_ERROR, _request_id(request))
    return _answer(request, INTERNAL_ERROR, problem)


def answer_error(request: Request, error: Exception) -> JSONResponse:
    """Returns the answer to an error that the table of problems knows; others are a 500."""
    kind = find_kind(error)
    if kind.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.error("%s", kind.code, exc_info=error)
    kind = replace(kind, retry_after_seconds=tell_retry_seconds(kind, error))
    return _answer(request, kind, describe_problem(error, _request_id(request)))


async def _answer_service_error(request: Request, error: Exception) -> JSONResponse:
    return answer_error(request, error)


async def _answer_validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return answer_error(request, InvalidParameters(list_values(error.errors())))


async def _answer_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    known = _FRAMEWORK_ERRORS.get(error.status_code)
    if known is not None:
        response = answer_error(request, known())
    else:
        phrase = HTTPStatus(error.status_code).phrase
        kind = ProblemKind(error.status_code, phrase.lower().replace(" ", "_"), phrase)
        response = _answer(request, kind, describe_kind(kind, _request_id(request)))
    response.headers.update(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["allow"] = ", ".join(_list_methods(request))
    return response


def _list_methods(request: Request) -> list[str]:
    """Returns the methods of a path; the framework knows those of its first route alone."""
    routes = request.app.router.routes
    return [
        method
        for method in _METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes
        )
    ]


def _answer(request: Request, kind: ProblemKind, problem: Problem) -> JSONResponse:
    request.state.problem = kind.code  # for the log and the metrics
    if is_open_inference(request):
        return OpenInferenceError(kind, problem)
    return ProblemResponse(kind, problem)


def _request_id(request: Request) -> str | None:
    request_id: str | None = request.scope.get("state", {}).get("request_id")
    return request_id
