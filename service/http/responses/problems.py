"""Answers errors with RFC 9457 problems; below `/v1` and `/v2`, in their protocols' shapes."""

import logging
import math
from collections.abc import Callable
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
PREFIX = "/v2"
OPENAI_PREFIX = "/v1"

ErrorType = type[ServiceError]

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# The protocol has 400 for everything that is invalid in a request.
_BAD_REQUESTS = frozenset({409, 415, 422})

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


class ErrorAnswer(BaseModel):
    """Every error of `/v2`."""

    error: str


class OpenAIErrorAnswer(BaseModel):
    """Every error below `/v1`."""

    error: dict[str, str | None] = Field(description="`message`, `type`, `code` and `param`.")


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


def find_v2_status(status: int) -> int:
    """Returns the status below `/v2` of an error with `status` elsewhere."""
    return HTTPStatus.BAD_REQUEST.value if status in _BAD_REQUESTS else status


def _render_problem(error: ServiceError, request_id: str | None) -> JSONResponse:
    content = describe_problem(error, request_id).model_dump(exclude_none=True)
    return JSONResponse(content, error.status, list_headers(error), PROBLEM_JSON)


def _render_v2_error(error: ServiceError, _request_id: str | None) -> JSONResponse:
    content = {"error": error.describe()}
    return JSONResponse(content, find_v2_status(error.status), list_headers(error))


def _render_openai_error(error: ServiceError, _request_id: str | None) -> JSONResponse:
    headers = list_headers(error)
    # OpenAI's clients repeat 409 and all 5xx twice, a request past its deadline too.
    headers["X-Should-Retry"] = str("Retry-After" in headers).lower()
    is_ours = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    described = {
        "message": error.describe(),
        "type": "server_error" if is_ours else "invalid_request_error",
        "code": error.code,
        "param": error.field,
    }
    return JSONResponse({"error": described}, error.status, headers)


RENDERERS: dict[str, Callable[[ServiceError, str | None], JSONResponse]] = {
    "": _render_problem,
    PREFIX: _render_v2_error,
    OPENAI_PREFIX: _render_openai_error,
}
"""The answer to an error and its request's id, by the first part of the path; "" is the rest."""


def find_prefix(path: str) -> str:
    """Returns the key of `RENDERERS` for a path below the root path."""
    prefix = f"/{path[1:].partition('/')[0]}"
    return prefix if prefix in RENDERERS else ""


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
    return RENDERERS[find_prefix(path)](error, request.scope["state"].get("request_id"))


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
