"""Errors of the client.

ClientError
|- ServiceProblem       the service answered that it cannot or will not
|- UnreadableAnswer     an answer came that is not the service's
`- ServiceUnreachable   no answer came, after all retries
"""

from __future__ import annotations

from typing import Any

_VALUE_FIELDS = ("where", "name", "reason")


class ClientError(Exception):
    """Anything that went wrong between a call and its answer; the text is one line."""


class ServiceUnreachable(ClientError):
    """No answer came: wrong address, no network, or a service that is away."""


class UnreadableAnswer(ClientError):
    """A good status with a body of another shape: something else answers at this address."""


class ServiceProblem(ClientError):
    """The service answered with a problem (RFC 9457).

    Attributes:
        status: HTTP status.
        code: stable name of the kind, `queue_full` for example; empty where something in front
            of the service answered.
        title: what this kind of problem is.
        detail: what is wrong in this one request, or None.
        errors: each wrong value with `where`, `name` and `reason`.
        request_id: what the service's log calls the request, or None.
    """

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        """Reads the body of an `application/problem+json` answer; takes of any other what fits."""
        self._body = body
        self.status = status
        self.code = _read_text(body, "code") or ""
        self.title = _read_text(body, "title") or f"HTTP {status}"
        self.detail = _read_text(body, "detail")
        self.errors = _read_values(body)
        self.request_id = _read_text(body, "request_id")
        values = "; ".join(f"{value['name']}: {value['reason']}" for value in self.errors)
        super().__init__(": ".join(filter(None, (self.title, values or self.detail))))

    def __reduce__(self) -> tuple[Any, ...]:
        """Tells pickle how to make it again: a pool of processes waits for ever where it cannot."""
        return type(self), (self.status, self._body)


def _read_text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    return value if isinstance(value, str) else None


def _read_values(body: dict[str, Any]) -> list[dict[str, str]]:
    listed = body.get("errors")
    return [
        value
        for value in (listed if isinstance(listed, list) else ())
        if isinstance(value, dict)
        and all(isinstance(value.get(name), str) for name in _VALUE_FIELDS)
    ]
