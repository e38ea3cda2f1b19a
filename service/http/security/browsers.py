"""Security headers of our pages, and checks of requests from pages of other sites (CORS, Host)."""

import ipaddress
import re
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from service.errors import CrossSite, HostNotAllowed, StartError, quote
from service.settings import Settings

RawHeaders = Sequence[tuple[bytes, bytes]]

# `data:` pictures are Swagger UI's icons, `blob:` ones are photos that were never uploaded.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'self'; form-action 'none'; frame-ancestors 'none'"
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
_BROWSER_HEADERS = (b"origin", b"sec-fetch-")
# Node.js sends this one; browsers send `Sec-Fetch-Site` with it.
_NODE_HEADER = (b"sec-fetch-mode", b"cors")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITE = frozenset({"same-origin", "none"})  # none: the user's own doing, such as a bookmark
_HOST_NAME = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|\*")
_PORT = re.compile(r":[0-9]*\Z")
_DEFAULT_PORT = re.compile(r":(80|443)?\Z")


class Sites:
    """The names of this service and the other sites that may use it, where no key protects it.

    A browser sends requests of any page that it shows. A page of another site can send simple
    forms; a page whose name resolves to our address (DNS rebinding) can read the answers too.
    """

    def __init__(self, settings: Settings) -> None:
        origins = read_origins(settings.cors_origins) or {}
        self._origins = frozenset[str](origins.get("allow_origins", ()))
        hosts = _read_hosts(settings.allowed_hosts)
        self._names = {"localhost", settings.host.lower(), *hosts}
        # Of `*` an empty one, which every name has.
        self._suffixes = (".localhost", *(host[1:] for host in hosts if host.startswith("*")))

    def check(self, scope: Scope) -> None:
        """Raises `HostNotAllowed` or `CrossSite`; without `Origin` and `Sec-Fetch-*`, nothing."""
        if not any(
            name.startswith(_BROWSER_HEADERS) and (name, value) != _NODE_HEADER
            for name, value in scope["headers"]
        ):
            return
        headers = Headers(scope=scope)
        hosts = [host.lower() for host in headers.getlist("host")]
        for host in hosts:
            name = _PORT.sub("", host).strip("[]").removesuffix(".")
            if not self._is_ours(name):
                raise HostNotAllowed(name)
        if scope["method"] in _SAFE_METHODS or "*" in self._origins:
            return
        origins, sites = headers.getlist("origin"), headers.getlist("sec-fetch-site")
        if sites:
            is_own = _OWN_SITE.issuperset(sites)
        else:
            is_own = all(_is_same_host(origin, hosts) for origin in origins)
        if not (is_own or (origins and self._origins.issuperset(origins))):
            raise CrossSite(", ".join(origins), ", ".join(hosts))

    def _is_ours(self, name: str) -> bool:
        if name in self._names or name.endswith(self._suffixes):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def add_security_headers(headers: RawHeaders) -> RawHeaders:
    """Adds security headers that the route has not set, more of them to HTML."""
    given = dict(headers)
    is_page = given.get(b"content-type", b"").startswith(b"text/html")
    wanted = _PAGE_HEADERS if is_page else COMMON_HEADERS
    return [*headers, *(header for header in wanted if header[0] not in given)]


def _is_same_host(origin: str, hosts: Sequence[str]) -> bool:
    origin_host = origin.rpartition("://")[2].lower()
    # Proxies often leave out the port of `Host`, and do not always name the scheme.
    hosts_without_port = {_DEFAULT_PORT.sub("", host) for host in hosts}
    return origin_host in hosts_without_port or _PORT.sub("", origin_host) in hosts_without_port


def _split(setting: str | None) -> list[str]:
    return [part.strip() for part in (setting or "").split(",") if part.strip()]


def _read_hosts(setting: str | None) -> list[str]:
    names = [name.lower().removesuffix(".") for name in _split(setting)]
    for name in names:
        if _HOST_NAME.fullmatch(name) is None:
            raise StartError(
                "allowed_hosts: a host must be a name such as tags.example.org or *.example.org, "
                f"without scheme and port; it is {quote(name)}"
            )
    return names


def read_origins(setting: str | None) -> dict[str, Any] | None:
    """Returns CORSMiddleware's arguments for `https://a.example,...` or `*`; None without any."""
    origins = _split(setting)
    for origin in origins:
        scheme, _, host = origin.partition("://")
        if origin != "*" and (scheme not in ("http", "https") or not host or "/" in host):
            example = "https://a.example"
            raise StartError(f"cors_origins: use origins like {example}; one is {quote(origin)}")
    if not origins:
        return None
    return {
        "allow_origins": origins,
        "allow_private_network": True,
        "allow_methods": ["GET", "POST", "PUT", "PATCH", "DELETE"],
        "allow_headers": ["Authorization", "Content-Type", "If-Match", "If-None-Match",
                          "Inference-Header-Content-Length", "X-API-Key", "X-Request-ID"],
        "expose_headers": ["ETag", "Inference-Header-Content-Length", "Location", "Retry-After",
                           "X-Request-ID"],
    }  # fmt: skip
