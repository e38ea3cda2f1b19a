"""Errors as the Open Inference Protocol has them: `{"error": sentence}`.

In: a row of the table in `problems.py`, and a problem. Out: the same in the protocol's shape, with
400 for whatever is wrong with a request. `answers.py` sends it for every path below `/v2`.
"""

from __future__ import annotations

from collections import defaultdict
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse

from service.http.responses.problems import PROBLEM_KINDS, Problem, ProblemKind, document_headers

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

    def __init__(self, kind: ProblemKind, problem: Problem) -> None:
        """Takes the status and the headers from `kind`, the sentences from `problem`."""
        super().__init__({"error": problem.sentences}, find_status(kind), kind.headers)


def is_open_inference(request: Request) -> bool:
    """Returns whether a request speaks the protocol, be there such a route or not."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return f"{path}/".startswith(f"{PREFIX}/")


def find_status(kind: ProblemKind) -> int:
    """Returns the status that the protocol has for a kind of problem."""
    return HTTPStatus.BAD_REQUEST if kind.status in _BAD_REQUESTS else kind.status


def document_errors(*errors: type[Exception]) -> dict[int | str, dict[str, Any]]:
    """Returns FastAPI's `responses` for the listed error classes."""
    kinds: dict[int, list[ProblemKind]] = defaultdict(list)
    for error in errors:
        kind = PROBLEM_KINDS[error]
        kinds[find_status(kind)].append(kind)
    return {
        int(status): {
            "model": ErrorAnswer,
            "description": "; ".join(kind.title for kind in group),
            **document_headers(group),
        }
        for status, group in sorted(kinds.items())
    }
