"""Answers errors of routes and framework with problems; below `/v2`, in that protocol's shape."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match

from service.errors import (
    InvalidParameters,
    MethodNotAllowed,
    RequestError,
    RouteNotFound,
    ServiceError,
    list_values,
)
from service.http.responses.open_inference import OpenInferenceError, is_open_inference
from service.http.responses.problems import Problem, describe_problem, list_headers

PROBLEM_JSON = "application/problem+json"

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_FRAMEWORK_ERRORS: Mapping[int, type[RequestError]] = {
    HTTPStatus.NOT_FOUND: RouteNotFound,
    HTTPStatus.METHOD_NOT_ALLOWED: MethodNotAllowed,
}

logger = logging.getLogger(__name__)


def add_problem_handlers(app: FastAPI) -> None:
    """Makes `app` answer every error of ours and of the framework with a problem."""
    app.add_exception_handler(ServiceError, _answer_service_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)


def answer_error(request: Request, error: ServiceError) -> JSONResponse:
    """Returns the answer to an error, and logs the error if its status is 500."""
    if error.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.error("%s", error.code, exc_info=error)
    return _answer(request, describe_problem(error, _request_id(request)), list_headers(error))


def answer_unexpected(request: Request) -> JSONResponse:
    """Returns the 500 of an unexpected error, without its cause; logging it is up to the caller."""
    return _answer(request, describe_problem(ServiceError(), _request_id(request)), {})


async def _answer_service_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServiceError)
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
        unknown = ServiceError()
        unknown.status, unknown.title = error.status_code, HTTPStatus(error.status_code).phrase
        unknown.code = unknown.title.lower().replace(" ", "_")
        response = answer_error(request, unknown)
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


def _answer(request: Request, problem: Problem, headers: dict[str, str]) -> JSONResponse:
    request.state.problem = problem.code  # for the log and the metrics
    if is_open_inference(request):
        return OpenInferenceError(problem, headers)
    content = problem.model_dump(exclude_none=True)
    return JSONResponse(content, problem.status, headers, PROBLEM_JSON)


def _request_id(request: Request) -> str | None:
    request_id: str | None = request.scope.get("state", {}).get("request_id")
    return request_id
