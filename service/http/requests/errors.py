"""What can be wrong with a request before anyone looks at its images.

    ServiceError                        (errors.py)
    `-- RequestError
        |-- RouteNotFound               no such path
        |-- MethodNotAllowed            the path exists, not with this method
        |-- Unauthorized                no key, or an unknown one
        |-- Forbidden                   a good key, but not for this
        |-- RateLimited                 too many requests of one caller
        |-- BodyTimeout                 the body did not arrive in time
        |-- BodyTooLarge                more bytes than the route takes
        |-- MalformedBody               not the JSON, base64 or multipart it says it is
        |-- UnsupportedMediaType        a Content-Type the route does not read
        |-- UnsupportedContentEncoding  a compressed body
        |-- FieldError                  a field that is missing, unknown or given twice
        |   |-- MissingField
        |   |-- UnknownField
        |   `-- RepeatedField
        |-- TooManyImages
        |-- UrlError                    an image that is given by its URL
        |   |-- UrlInputOff             the service fetches none
        |   |-- UrlNotUsable            not https, not public, or no image comes
        |   `-- OriginTimeout           it comes too slowly
        |-- InvalidParameters           values out of range, one line for each
        |-- InvalidTensors              tensors of `/v2` that are not what they say
        `-- UnknownModel                `/v2` serves no such model or version

Raised by `keys.py`, `rates.py`, `multipart.py`, `uploads.py`, `parameters.py` and
`fetching.py`; `problems.py` answers them.
Every `str(error)` is a fixed sentence around numbers of ours and names that the client
sent, so it may be shown to the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from service.errors import ServiceError

# A client's own field name comes back in the answer, but not a megabyte of it.
_SHOWN_CHARACTERS = 80
_SHOWN_VALUES = 10


class RequestError(ServiceError):
    """The request itself is wrong; no image was decoded."""


class RouteNotFound(RequestError):
    """There is no such path."""

    def __init__(self) -> None:
        super().__init__("There is no such path here; /docs lists them.")


class MethodNotAllowed(RequestError):
    """The path exists, but not with this method."""

    def __init__(self) -> None:
        super().__init__("The header Allow lists the methods of this path.")


class Unauthorized(RequestError):
    """The request has no key, or an unknown one."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__(
            "The key that was sent is not known here."
            if sent
            else "Send a key: `Authorization: Bearer KEY`, or `X-API-Key: KEY`."
        )


class Forbidden(RequestError):
    """The key is good, but not for this route."""

    def __init__(self) -> None:
        super().__init__("Changing label sets takes an administration key.")


class RateLimited(RequestError):
    """The caller has sent as many requests as it may.

    Attributes:
        retry_after_seconds: when it may send the next one.
    """

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__("Try again after the seconds in Retry-After.")
        self.retry_after_seconds = retry_after_seconds


class BodyTimeout(RequestError):
    """The body did not arrive within the time allowed, in seconds."""

    def __init__(self, limit_seconds: float) -> None:
        super().__init__(f"The request body did not arrive within {limit_seconds:g} seconds.")


class BodyTooLarge(RequestError):
    """The body, or one text field of it, has more bytes than allowed."""

    def __init__(self, limit_bytes: int, what: str = "The request body") -> None:
        super().__init__(f"{what} is larger than {limit_bytes} bytes.")


class MalformedBody(RequestError):
    """The body cannot be parsed as what its Content-Type says; `reason` is fixed wording."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}.")


class UnsupportedMediaType(RequestError):
    """The Content-Type is none of those that the route reads."""

    def __init__(self, supported: Sequence[str]) -> None:
        super().__init__(f"Send the body as one of: {', '.join(supported)}.")


class UnsupportedContentEncoding(RequestError):
    """The body is compressed; images already are, so nothing is gained by it."""

    def __init__(self) -> None:
        super().__init__("Send the body without a Content-Encoding.")


class FieldError(RequestError):
    """A field of the body or the query string is missing, unknown or given twice."""


class MissingField(FieldError):
    """The field that holds the image is not in the body."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Field '{name}' is missing.")


class UnknownField(FieldError):
    """The body has a field that the route does not know."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        shown = name[:_SHOWN_CHARACTERS]
        super().__init__(f"Field '{shown}' is unknown; known fields: {', '.join(known)}.")


class RepeatedField(FieldError):
    """A parameter that takes one value was given several times."""

    def __init__(self, name: str) -> None:
        super().__init__(f"'{name}' is given more than once.")


class TooManyImages(RequestError):
    """The request holds more images than the route takes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"This route takes at most {limit} image(s) in one request.")


class UrlError(RequestError):
    """The image behind a URL cannot be had."""


class UrlInputOff(UrlError):
    """The service fetches no URLs."""

    def __init__(self) -> None:
        super().__init__("Send the image itself.")


class UrlNotUsable(UrlError):
    """No image comes from there; which of the many reasons it is stays with us."""

    def __init__(self) -> None:
        super().__init__("The URL has to be https and public, and to answer with an image.")


class OriginTimeout(UrlError):
    """The image did not come within the time allowed, in seconds."""

    def __init__(self, limit_seconds: float) -> None:
        super().__init__(f"The image did not arrive within {limit_seconds:g} seconds.")


@dataclass(frozen=True)
class InvalidValue:
    """One wrong value: where it stood (`query`, `path` or `body`), its name, what is wrong.

    The name of a value in a list is its place there: `labels.0.threshold`.
    """

    where: str
    name: str
    reason: str


def list_values(pydantic_errors: Iterable[Any], where: str | None = None) -> list[InvalidValue]:
    """Turns pydantic's error dictionaries into values that a client may see, the first ten of them.

    Args:
        pydantic_errors: what `ValidationError.errors()` of pydantic or FastAPI returns.
        where: where the values stood; None where the first part of `loc` says it, as
            FastAPI's does.
    """
    found = list(pydantic_errors)
    # What is wrong in a list leaves it too short as well, which nobody needs to hear.
    wrong_inside = {error["loc"][:depth] for error in found for depth in range(len(error["loc"]))}
    told = (error for error in found if error["loc"] not in wrong_inside)
    values = []
    for error in islice(told, _SHOWN_VALUES):
        place, *names = error["loc"] if where is None else (where, *error["loc"])
        name = ".".join(map(str, names)) or str(place)
        values.append(InvalidValue(str(place), name, error["msg"]))
    return values


class InvalidParameters(RequestError):
    """Values that are not of the right type or out of range."""

    def __init__(self, values: Sequence[InvalidValue]) -> None:
        self.values = tuple(values)
        names = ", ".join(dict.fromkeys(f"'{value.name}'" for value in values))
        super().__init__(f"Not valid: {names}.")


class InvalidTensors(RequestError):
    """An inference request is not what the model takes; `reason` is fixed wording."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}.")


class UnknownModel(RequestError):
    """There is no such model, or not in this version."""

    def __init__(self) -> None:
        super().__init__("GET /v2/models/NAME answers for the one that /info names.")
