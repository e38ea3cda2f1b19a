"""Errors as RFC 9457 problem details: what a client reads of an exception."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field

from service.errors import ImageError, InvalidParameters, ServiceError

ErrorType = type[ServiceError]

_HEADERS = {
    "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}},
    "WWW-Authenticate": {"description": "`Bearer`.", "schema": {"type": "string"}},
}


class ProblemValue(BaseModel):
    """One value that is not valid."""

    where: str = Field(description="`query`, `path` or `body`.", examples=["query"])
    name: str = Field(
        description="Name of the parameter; in a list with its place: `labels.0.threshold`.",
        examples=["top_k"],
    )
    reason: str = Field(examples=["Input should be greater than or equal to 1"])


class Problem(BaseModel):
    """An error as RFC 9457 problem details."""

    type: str = Field(
        description="Identifies the kind of problem; ends with `code`.",
        examples=["urn:ml-decoder:problem:invalid_image"],
    )
    title: str = Field(
        description="What this kind of problem is; never changes.",
        examples=["The file is damaged or is not an image"],
    )
    status: int = Field(description="The HTTP status.", examples=[400])
    code: str = Field(description="Stable name of the kind.", examples=["invalid_image"])
    detail: str | None = Field(
        default=None, description="What is wrong in this one request.", examples=[None]
    )
    errors: list[ProblemValue] | None = Field(
        default=None,
        description="Each wrong value, for `invalid_parameters`.",
        examples=[None],
    )
    request_id: str | None = Field(
        default=None, description="As in `X-Request-ID`.", examples=["6f1c0ab2"]
    )

    @property
    def sentences(self) -> str:
        """The title, and the detail if there is one."""
        return ". ".join(filter(None, (self.title, self.detail)))


def describe_type(error: ServiceError | ErrorType, request_id: str | None = None) -> Problem:
    """Returns the problem without a detail."""
    return Problem(
        type=f"urn:ml-decoder:problem:{error.code}",
        title=error.title,
        status=error.status,
        code=error.code,
        request_id=request_id,
    )


def describe_problem(error: Exception, request_id: str | None = None) -> Problem:
    """Returns what a client may read of an error; an unknown error is an internal error."""
    if not isinstance(error, ServiceError):
        return describe_type(ServiceError, request_id)
    problem = describe_type(error, request_id)
    problem.detail = error.detail
    if isinstance(error, ImageError) and error.place is not None:
        problem.detail = " ".join(filter(None, (f"{error.place}.", error.detail)))
    if isinstance(error, InvalidParameters):
        problem.errors = [ProblemValue(**asdict(value)) for value in error.values]
    return problem


def describe_failure(error: Exception) -> str:
    """Returns what a client may read of an error, as one line."""
    return describe_problem(error).sentences


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


def document_headers(errors: Iterable[ErrorType]) -> dict[str, Any]:
    """Returns the headers of an answer for an OpenAPI document; empty if it has none."""
    sent = {name for error in errors for name in list_headers(error)}
    headers = {name: described for name, described in _HEADERS.items() if name in sent}
    return {"headers": headers} if headers else {}
