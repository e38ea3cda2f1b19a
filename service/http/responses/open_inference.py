"""Errors of all paths below `/v2`, in the shape of the Open Inference Protocol."""

from __future__ import annotations

from collections import defaultdict
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse

from service.http.responses.problems import ErrorType, Problem, document_headers

PREFIX = "/v2"

_BAD_REQUESTS = frozenset(
    {
        HTTPStatus.CONFLICT,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)


class ErrorAnswer(BaseModel):
    """Every error of `/v2`."""

    error: str = Field(examples=["The tensors are not valid. Input 'imag' is unknown."])


class OpenInferenceError(JSONResponse):
    """An error in the protocol's shape."""

    def __init__(self, problem: Problem, headers: dict[str, str]) -> None:
        super().__init__({"error": problem.sentences}, find_status(problem.status), headers)


def is_open_inference(request: Request) -> bool:
    """Returns whether a path is below `/v2`, even if there is no such route."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return f"{path}/".startswith(f"{PREFIX}/")


def find_status(status: int) -> int:
    """Returns the protocol's status for a problem's: 400 for everything invalid in a request."""
    return HTTPStatus.BAD_REQUEST if status in _BAD_REQUESTS else status


def document_errors(*errors: ErrorType) -> dict[int | str, dict[str, Any]]:
    """Returns FastAPI's `responses` for these errors."""
    by_status: dict[int, list[ErrorType]] = defaultdict(list)
    for error in errors:
        by_status[find_status(error.status)].append(error)
    return {
        int(status): {
            "model": ErrorAnswer,
            "description": "; ".join(error.title for error in group),
            **document_headers(group),
        }
        for status, group in sorted(by_status.items())
    }
