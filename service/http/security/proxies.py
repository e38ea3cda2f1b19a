"""Proxies in front: their `X-Forwarded-*` headers, and the path below which they publish us."""

import logging
import os
import re

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from service.errors import StartError, quote

_PREFIX_HEADER = b"x-forwarded-prefix"
# Answers contain the prefix, in URLs and in HTML: no empty or relative segment, nothing to escape.
_PREFIX = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._~-]+)+")
_MAX_CHARACTERS = 200

logger = logging.getLogger(__name__)


class TrustedProxies(ProxyHeadersMiddleware):
    """uvicorn's reader of `X-Forwarded-For` and `-Proto`, which also finds the root path.

    As ASGI requires, it sets `root_path` to the prefix and `path` to the prefix and the route. The
    proxy may have removed the prefix from the path or not.
    """

    def __init__(self, app: ASGIApp, root_path: str | None) -> None:
        trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")  # as uvicorn's own flag
        super().__init__(app, trusted)  # type: ignore[arg-type]
        self._root_path = read_root_path(root_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # type: ignore[override]
        """Serves one request."""
        if scope["type"] == "http":
            # Before the address of the proxy is replaced by the client's.
            prefix = self._read_prefix(scope) or self._root_path
            root_path = prefix or scope.get("root_path", "").rstrip("/")
            path = scope["path"]
            if path == root_path:
                path = f"{root_path}/"
            elif not path.startswith(f"{root_path}/"):
                path = root_path + path
            scope["root_path"], scope["path"] = root_path, path
        await super().__call__(scope, receive, send)  # type: ignore[arg-type]

    def _read_prefix(self, scope: Scope) -> str:
        """Returns the prefix that trusted proxies name, joined; empty if none does."""
        values = [value for name, value in scope["headers"] if name == _PREFIX_HEADER]
        if not values:
            return ""
        client = scope.get("client")
        if (client[0] if client else None) not in self.trusted_hosts:
            return ""
        named = b",".join(values).decode("latin-1")
        parts = [part.strip().removesuffix("/") for part in named.split(",")]
        if len(named) > _MAX_CHARACTERS or not all(map(_PREFIX.fullmatch, filter(None, parts))):
            logger.debug("invalid X-Forwarded-Prefix", extra={"value": named[:_MAX_CHARACTERS]})
            return ""
        return "".join(parts)


def read_root_path(setting: str | None) -> str:
    """Returns the prefix, empty for none. Raises `StartError` if the setting is invalid."""
    prefix = (setting or "").removesuffix("/")
    if prefix and not (_PREFIX.fullmatch(prefix) and len(prefix) <= _MAX_CHARACTERS):
        raise StartError(
            "root_path must be a path such as /tags or /a/b, of letters, digits, '.', '_', '~' and "
            f"'-'; it is {quote(prefix)}"
        )
    return prefix
