"""Headers for browsers: security headers of our pages, and CORS for pages of other sites."""

from collections.abc import Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import StartError, quote

# `data:` pictures are Swagger UI's icons, `blob:` ones are photos that were never uploaded.
PAGE_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        "base-uri 'self'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
COMMON_HEADERS = ((b"x-content-type-options", b"nosniff"),)
"""Security headers of every answer."""
_PAGE_HEADERS = (
    *COMMON_HEADERS,
    (b"content-security-policy", PAGE_POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)


class SecurityHeaders:
    """ASGI middleware: adds security headers that the route has not set, more of them to HTML."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _add_headers(message["headers"])
            await send(message)

        await self._app(scope, receive, send_with_headers)


def read_origins(setting: str | None) -> dict[str, Any] | None:
    """Returns the arguments of Starlette's CORSMiddleware; None without origins.

    The setting is `https://a.example,https://b.example:8443`, or `*` for all.
    """
    origins = [origin.strip() for origin in (setting or "").split(",") if origin.strip()]
    for origin in origins:
        scheme, _, host = origin.partition("://")
        if origin != "*" and (scheme not in ("http", "https") or not host or "/" in host):
            raise StartError(
                "cors_origins: an origin must be a scheme and a host such as https://a.example; "
                f"it is {quote(origin)}"
            )
    if not origins:
        return None
    return {
        "allow_origins": origins,
        "allow_methods": ["GET", "POST", "PUT", "PATCH", "DELETE"],
        "allow_headers": ["Authorization", "Content-Type", "If-Match", "If-None-Match",
                          "Inference-Header-Content-Length", "X-API-Key", "X-Request-ID"],
        "expose_headers": ["ETag", "Inference-Header-Content-Length", "Location", "Retry-After",
                           "X-Request-ID"],
    }  # fmt: skip


def _add_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    given = dict(headers)
    is_page = given.get(b"content-type", b"").startswith(b"text/html")
    wanted = _PAGE_HEADERS if is_page else COMMON_HEADERS
    return [*headers, *(header for header in wanted if header[0] not in given)]
