"""Errors of the client.

ClientError
|- ServiceProblem       the service answered that it cannot or will not
`- ServiceUnreachable   no answer came, after all retries
"""

from __future__ import annotations

from typing import Any


class ClientError(Exception):
    """Anything that went wrong between a call and its answer; the text is one line."""


class ServiceUnreachable(ClientError):
    """No answer came: wrong address, no network, or a service that is away."""


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
        """Reads the body of an `application/problem+json` answer."""
        self.status = status
        self.code: str = body.get("code", "")
        self.title: str = body.get("title", f"HTTP {status}")
        self.detail: str | None = body.get("detail")
        self.errors: list[dict[str, str]] = body.get("errors", [])
        self.request_id: str | None = body.get("request_id")
        values = "; ".join(f"{value['name']}: {value['reason']}" for value in self.errors)
        super().__init__(": ".join(filter(None, (self.title, values or self.detail))))
