"""Problems: what a client is told of an error (RFC 9457), from one table.

In: an exception. Out: a `Problem`: HTTP status, stable `code`, wording of ours. Exception
texts stay in the log; `detail` is made from an error's attributes, or is the text of a
`RequestError`, which is fixed wording by contract. What is not in the table is an
internal error. Next: `answers.py`, which sends problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field

from service import errors
from service.errors import (
    ImageError,
    InvalidLabelSet,
    QuestionError,
    ServiceError,
    TooManyPixels,
    UnknownLabelSet,
)
from service.http.requests import errors as request_errors
from service.http.requests.errors import InvalidParameters
from service.images.formats import FORMATS

_SHOWN_NAMES = 10
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class ProblemKind:
    """One row of the table.

    Attributes:
        status: HTTP status.
        code: stable name for programs.
        title: the same sentence every time.
        detail: makes the sentence about this one error; None where the title says all.
        retry_after_seconds: when trying again makes sense, where the error itself does not
            know better; None where it never does.
    """

    status: int
    code: str
    title: str
    detail: Callable[[Any], str] | None = None
    retry_after_seconds: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to the status."""
        headers = {}
        if self.retry_after_seconds is not None:
            headers["Retry-After"] = str(self.retry_after_seconds)
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status == HTTPStatus.REQUEST_TIMEOUT:
            headers["Connection"] = "close"  # nobody is going to read the rest of the body
        return headers


def _list_names(error: QuestionError) -> str:
    shown = ", ".join(f"'{name[:_SHOWN_CHARACTERS]}'" for name in error.names[:_SHOWN_NAMES])
    more = len(error.names) - _SHOWN_NAMES
    return f"{shown} and {more} more." if more > 0 else f"{shown}."


def _list_sets(error: UnknownLabelSet) -> str:
    names = _list_names(error)
    if error.by_default:
        return f"{names[:-1]}, the default of requests that name none."
    return names


def _tell_reason(error: InvalidLabelSet) -> str:
    return f"{error.reason}."


def _list_types(_error: ServiceError) -> str:
    more = "" if "HEIF" in FORMATS else "; HEIC and AVIF where the extra heif is installed"
    return f"Supported types: {', '.join(FORMATS)}{more}."


def _tell_limit(error: TooManyPixels) -> str:
    return f"At most {error.limit} pixels (width x height) are read."


# Error class -> answer. An error takes the row of its nearest listed ancestor.
PROBLEM_KINDS: Mapping[type[Exception], ProblemKind] = {
    request_errors.RouteNotFound: ProblemKind(404, "not_found", "Not found", str),
    request_errors.MethodNotAllowed: ProblemKind(
        405, "method_not_allowed", "Method not allowed", str
    ),
    request_errors.Unauthorized: ProblemKind(401, "unauthorized", "A valid key is needed", str),
    request_errors.Forbidden: ProblemKind(403, "forbidden", "The key does not permit this", str),
    request_errors.RateLimited: ProblemKind(
        429, "rate_limited", "Too many requests", str, retry_after_seconds=1
    ),
    request_errors.BodyTimeout: ProblemKind(
        408, "body_timeout", "The request body came too slowly", str
    ),
    request_errors.BodyTooLarge: ProblemKind(
        413, "body_too_large", "The request body is too large", str
    ),
    request_errors.MalformedBody: ProblemKind(
        400, "malformed_body", "The request body cannot be parsed", str
    ),
    request_errors.UnsupportedMediaType: ProblemKind(
        415, "unsupported_media_type", "The Content-Type is not supported", str
    ),
    request_errors.UnsupportedContentEncoding: ProblemKind(
        415, "unsupported_content_encoding", "The Content-Encoding is not supported", str
    ),
    request_errors.MissingField: ProblemKind(422, "missing_field", "A field is missing", str),
    request_errors.UnknownField: ProblemKind(422, "unknown_field", "A field is unknown", str),
    request_errors.RepeatedField: ProblemKind(
        422, "repeated_field", "A parameter is given more than once", str
    ),
    request_errors.TooManyImages: ProblemKind(
        422, "too_many_images", "Too many images in one request", str
    ),
    request_errors.InvalidParameters: ProblemKind(
        422, "invalid_parameters", "A parameter is not valid", str
    ),
    request_errors.InvalidTensors: ProblemKind(
        400, "invalid_tensors", "The tensors are not valid", str
    ),
    request_errors.UnknownModel: ProblemKind(
        404, "unknown_model", "There is no such model or version", str
    ),
    request_errors.UrlInputOff: ProblemKind(
        422, "url_input_off", "This service takes no URLs of images", str
    ),
    request_errors.UrlNotUsable: ProblemKind(
        422, "url_not_usable", "The image could not be fetched", str
    ),
    request_errors.OriginTimeout: ProblemKind(
        504, "origin_timeout", "The image took too long to fetch", str
    ),
    errors.InvalidImage: ProblemKind(
        400, "invalid_image", "The file is damaged or is not an image"
    ),
    errors.UnsupportedImage: ProblemKind(
        415, "unsupported_image", "The image type is not supported", _list_types
    ),
    errors.TooManyPixels: ProblemKind(
        413, "too_many_pixels", "The image has too many pixels", _tell_limit
    ),
    errors.UnknownLabel: ProblemKind(422, "unknown_label", "A label is unknown", _list_names),
    errors.ConflictingLabels: ProblemKind(
        422, "conflicting_labels", "A label is both included and excluded", _list_names
    ),
    errors.UnknownLabelSet: ProblemKind(
        422, "unknown_label_set", "A label set is unknown", _list_sets
    ),
    errors.NoMaps: ProblemKind(409, "no_maps", "This model has no maps of these labels"),
    errors.InvalidLabelSet: ProblemKind(
        422, "invalid_labels", "The labels cannot be used", _tell_reason
    ),
    errors.TextNotEncodable: ProblemKind(
        422, "embedding_needed", "This model encodes no text: give every label an embedding"
    ),
    errors.OtherEmbeddings: ProblemKind(
        409, "other_embeddings", "The embeddings come from another embedding space than the model's"
    ),
    errors.NoOpenHead: ProblemKind(409, "no_open_head", "This model knows its trained labels only"),
    errors.LabelSetNotFound: ProblemKind(404, "label_set_not_found", "There is no such label set"),
    errors.LabelSetExists: ProblemKind(
        409, "label_set_exists", "Another label set has this name; PUT replaces it"
    ),
    errors.LabelSetReadOnly: ProblemKind(
        409, "label_set_read_only", "This label set is read-only, and its name is reserved"
    ),
    errors.LabelSetChanged: ProblemKind(
        412, "label_set_changed", "The label set is not in the version that the request demands"
    ),
    errors.TooManyLabelSets: ProblemKind(
        409, "too_many_label_sets", "The label store holds as many sets or labels as it may"
    ),
    errors.VersionNotReached: ProblemKind(
        409, "version_not_reached", "The label sets have not reached this version"
    ),
    errors.StoreUnavailable: ProblemKind(
        503, "store_unavailable", "The label store does not answer", retry_after_seconds=2
    ),
    errors.StoreFull: ProblemKind(507, "store_full", "The label store has no space left"),
    errors.QueueFull: ProblemKind(429, "queue_full", "The service is busy", retry_after_seconds=1),
    errors.InferenceFailed: ProblemKind(500, "inference_failed", "The model could not be run"),
    errors.OutOfMemory: ProblemKind(
        503, "out_of_memory", "The device is out of memory", retry_after_seconds=1
    ),
    errors.NotReady: ProblemKind(
        503, "not_ready", "The service is not ready", retry_after_seconds=2
    ),
    errors.Draining: ProblemKind(
        503, "draining", "The service is shutting down", retry_after_seconds=2
    ),
    errors.DeadlineExceeded: ProblemKind(
        504, "deadline_exceeded", "The request took too long and was dropped"
    ),
}

INTERNAL_ERROR = ProblemKind(500, "internal_error", "Internal error")

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
        """The title, and the detail where there is one."""
        return ". ".join(filter(None, (self.title, self.detail)))


def document_headers(kinds: Iterable[ProblemKind]) -> dict[str, Any]:
    """Returns what an OpenAPI document says of the headers of an answer: nothing where none is."""
    sent = {name for kind in kinds for name in kind.headers}
    headers = {name: described for name, described in _HEADERS.items() if name in sent}
    return {"headers": headers} if headers else {}


def find_kind(error: Exception) -> ProblemKind:
    """Returns the row of the nearest listed ancestor, else `INTERNAL_ERROR`."""
    for ancestor in type(error).__mro__:
        if ancestor in PROBLEM_KINDS:
            return PROBLEM_KINDS[ancestor]
    return INTERNAL_ERROR


def tell_retry_seconds(kind: ProblemKind, error: Exception) -> int | None:
    """Returns the whole seconds after which to try again: the error's own, else its kind's."""
    seconds: float | None = getattr(error, "retry_after_seconds", None)
    return kind.retry_after_seconds if seconds is None else max(1, math.ceil(seconds))


def describe_kind(kind: ProblemKind, request_id: str | None) -> Problem:
    """Returns the problem that says no more than its kind."""
    return Problem(
        type=f"urn:ml-decoder:problem:{kind.code}",
        title=kind.title,
        status=kind.status,
        code=kind.code,
        request_id=request_id,
    )


def describe_problem(error: Exception, request_id: str | None = None) -> Problem:
    """Returns all that a client may know of `error`."""
    kind = find_kind(error)
    problem = describe_kind(kind, request_id)
    if kind.detail is not None:
        problem.detail = kind.detail(error)
    if isinstance(error, ImageError) and error.place is not None:
        problem.detail = " ".join(filter(None, (f"{error.place}.", problem.detail)))
    if isinstance(error, InvalidParameters):
        problem.errors = [ProblemValue(**asdict(value)) for value in error.values]
    return problem


def describe_failure(error: Exception) -> str:
    """Returns what a client may know of `error` as one line of text."""
    return describe_problem(error).sentences
