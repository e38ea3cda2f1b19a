"""Browsers: what their pages may do with answers, and other sites' pages with the service.

In: an answer on its way out. Out: the same, with the headers that keep a page of ours to itself,
unless its route has set them; and, where the settings name other origins, leave for their pages
to ask (CORS). Next: `access.py`, the outermost layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import StartError

# `data:` pictures are Swagger UI's icons, `blob:` ones are photos that were never uploaded.
PAGE_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
EVERYWHERE = ((b"x-content-type-options", b"nosniff"),)
"""Headers of every answer."""
_ON_PAGES = (
    *EVERYWHERE,
    (b"content-security-policy", PAGE_POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)


class PageGuard:
    """ASGI middleware: security headers on every answer, more of them on HTML."""

    def __init__(self, app: ASGIApp) -> None:
        """Wraps `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _guard(message["headers"])
            await send(message)

        await self._app(scope, receive, send_guarded)


def read_origins(setting: str | None) -> dict[str, Any] | None:
    """Returns the arguments of Starlette's CORSMiddleware; None where no origin may ask.

    Args:
        setting: `https://a.example,https://b.example:8443`, or `*` for all.

    Raises:
        StartError: something in the list is no origin.
    """
    origins = [origin.strip() for origin in (setting or "").split(",") if origin.strip()]
    for origin in origins:
        scheme, _, host = origin.partition("://")
        if origin != "*" and (scheme not in ("http", "https") or not host or "/" in host):
            raise StartError("cors_origins: an origin is a scheme and a host: https://a.example")
    if not origins:
        return None
    return {
        "allow_origins": origins,
        "allow_methods": ["GET", "POST", "PUT", "DELETE"],
        "allow_headers": ["Authorization", "Content-Type", "If-Match", "If-None-Match",
                          "Inference-Header-Content-Length", "X-API-Key", "X-Request-ID"],
        "expose_headers": ["ETag", "Inference-Header-Content-Length", "Location", "Retry-After",
                           "X-Request-ID"],
    }  # fmt: skip


def _guard(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    given = dict(headers)
    is_page = given.get(b"content-type", b"").startswith(b"text/html")
    wanted = _ON_PAGES if is_page else EVERYWHERE
    return [*headers, *(header for header in wanted if header[0] not in given)]
