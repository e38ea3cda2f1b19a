"""Answers errors with RFC 9457 problems, or in the shapes of other programs (`renderers`)."""

import logging
import math
from collections.abc import Callable, Container, Mapping
from http import HTTPStatus

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match

from service.errors import (
    InvalidParameters,
    MethodNotAllowed,
    ProblemValue,
    RouteNotFound,
    ServiceError,
)
from service.fields import list_values

PROBLEM_JSON = "application/problem+json"

ErrorType = type[ServiceError]
Renderer = Callable[[ServiceError, str | None], JSONResponse]
Renderers = Mapping[str, Renderer]
"""The answer to an error and its request's id, by the first part of the path; "" is the rest."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

logger = logging.getLogger(__name__)


class Problem(BaseModel):
    """An error as RFC 9457 problem details."""

    type: str = Field(examples=["urn:ml-decoder:problem:invalid_image"])
    title: str = Field(description="What this kind of problem is, in words that may change.")
    status: int = Field(description="The HTTP status.", examples=[400])
    code: str = Field(description="Stable name of the kind.", examples=["invalid_image"])
    detail: str | None = Field(None, description="What is wrong in this one request.")
    errors: list[ProblemValue] | None = Field(None, description="For `invalid_parameters`.")
    request_id: str | None = Field(None, description="As in `X-Request-ID`.")


def describe_problem(error: ServiceError, request_id: str | None = None) -> Problem:
    """Returns the problem of an error."""
    return Problem(
        type=f"urn:ml-decoder:problem:{error.code}",
        title=error.title,
        status=error.status,
        code=error.code,
        detail=error.detail,
        errors=error.values if isinstance(error, InvalidParameters) else None,
        request_id=request_id,
    )


def list_headers(error: ServiceError | ErrorType) -> dict[str, str]:
    """Returns the headers of an error's answer; `Retry-After` is in whole seconds, at least 1."""
    headers = {}
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_seconds)))
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == HTTPStatus.REQUEST_TIMEOUT:
        headers["Connection"] = "close"  # the rest of the body is not read
    return headers


def render_problem(error: ServiceError, request_id: str | None) -> JSONResponse:
    """Returns the answer to an error outside the paths of other programs."""
    content = describe_problem(error, request_id).model_dump(exclude_none=True)
    return JSONResponse(content, error.status, list_headers(error), PROBLEM_JSON)


def find_prefix(path: str, prefixes: Container[str]) -> str:
    """Returns the first part of a path below the root path if it is one of `prefixes`, else ""."""
    prefix = f"/{path[1:].partition('/')[0]}"
    return prefix if prefix in prefixes else ""


def add_problem_handlers(app: FastAPI) -> None:
    """Makes `app` answer every error of ours and of the framework with a problem."""
    for error in (ServiceError, RequestValidationError, HTTPException):
        app.add_exception_handler(error, _answer_any)


def answer_error(request: Request, error: ServiceError) -> JSONResponse:
    """Returns the answer to an error, and logs the error if its status is 500."""
    if error.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.error("%s", error.code, exc_info=error)
    request.state.problem = error.code  # for the log and the metrics
    path = request.scope["path"].removeprefix(request.scope["root_path"])
    renderers: Renderers = request.app.state.renderers
    state = request.scope["state"]
    request_id = state.get("body_id") or state.get("request_id")
    return renderers[find_prefix(path, renderers)](error, request_id)


async def _answer_any(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, ServiceError):
        return answer_error(request, error)
    if isinstance(error, RequestValidationError):
        return answer_error(request, InvalidParameters(list_values(error.errors())))
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        return answer_error(request, RouteNotFound())
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        response = answer_error(request, MethodNotAllowed())
        response.headers["allow"] = ", ".join(_list_methods(request))
        return response
    raise error  # such as for a file of the page that cannot be read: a 500


def _list_methods(request: Request) -> list[str]:
    """Returns the methods of a path; Starlette lists those of the first matching route only."""
    routes = request.app.router.routes
    asked = {method: {**request.scope, "method": method} for method in METHODS}
    asked["HEAD"] = asked["GET"]  # `DirectRouter`
    return [
        method
        for method in METHODS
        if any(route.matches(asked[method])[0] is Match.FULL for route in routes)
    ]
