"""API keys: routes depend on `PREDICT`, `ADMINISTRATE` or `PUBLIC`; only health on none."""

import hashlib
import hmac
import ipaddress
from collections.abc import Callable

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import SecretStr

from service.errors import Forbidden, HostNotAllowed, RateLimited, StartError, Unauthorized
from service.settings import Settings, expand_home

_MIN_CHARACTERS = 16
# Not part of a header's value (RFC 9110, section 5.5).
_WHITE_SPACE = " \t"
# The network of one home or office.
_IPV6_PREFIX = 64

_BEARER = HTTPBearer(auto_error=False, scheme_name="bearer", description="A key, if keys are set.")
_HEADER = APIKeyHeader(
    name="X-API-Key", auto_error=False, scheme_name="header", description="The same key."
)


class KeyRing:
    """The keys of the settings as digests, so that a leak of this object reveals no key."""

    def __init__(self, settings: Settings) -> None:
        self._predict = _read_keys("predict_keys", settings.predict_keys)
        self._administrate = _read_keys("admin_keys", settings.admin_keys)
        self.is_empty = not (self._predict or self._administrate)

    def check_predict(self, key: str | None) -> bool:
        """Raises `Unauthorized` unless `key` may predict; returns False if no key is needed."""
        if self._predict and not _contains((*self._predict, *self._administrate), key):
            raise Unauthorized(sent=bool(key))
        return bool(self._predict)

    def check_administrate(self, key: str | None) -> bool:
        """Raises `Forbidden` or `Unauthorized`; returns False if changing sets needs no key."""
        if not (self.is_empty or _contains(self._administrate, key)):
            raise Forbidden if _contains(self._predict, key) else Unauthorized(sent=bool(key))
        return not self.is_empty

    def check_public(self, _key: str | None) -> bool:
        """Returns whether predictions need a key: a page of another site has none."""
        return bool(self._predict)

    def name_caller(self, key: str | None, address: str) -> str:
        """Returns the digest of a known key, else the address (IPv6: its /64 network)."""
        if key is not None and _contains((*self._predict, *self._administrate), key):
            return f"key {_digest(key).hex()[:16]}"
        return f"address {_widen(address)}"


class Guard:
    """A dependency that checks the key, else the host name; sets `request.state.caller`."""

    def __init__(self, check: Callable[[KeyRing, str | None], bool]) -> None:
        self._check = check

    async def __call__(self, request: Request) -> None:
        """Raises `Unauthorized`, `Forbidden`, `RateLimited`, `HostNotAllowed` or `CrossSite`."""
        state = request.app.state
        ring: KeyRing = state.keys
        key = None if ring.is_empty else _read_key(request)
        if state.rates is not None:
            request.state.caller = _name_caller(request, ring, key)
        try:
            needs_key = self._check(ring, key)
        except Unauthorized:
            if key:  # a guess
                state.wrong_keys.count(_name_caller(request, ring, key))
            raise
        if not needs_key:
            state.sites.check(request.scope)


PUBLIC = Depends(Guard(KeyRing.check_public))
_DOCUMENTED = (Security(_BEARER), Security(_HEADER))
PREDICT = (Depends(Guard(KeyRing.check_predict)), *_DOCUMENTED)
ADMINISTRATE = (Depends(Guard(KeyRing.check_administrate)), *_DOCUMENTED)

ACCESS_PROBLEMS = (Unauthorized, HostNotAllowed, RateLimited)
"""Errors of `PREDICT`; also `CrossSite` unless the method is GET, and `Forbidden` of a change."""


def _name_caller(request: Request, ring: KeyRing, key: str | None) -> str:
    return ring.name_caller(key, request.client.host if request.client is not None else "unknown")


def _read_key(request: Request) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip(_WHITE_SPACE):
        key = request.headers.get("X-API-Key", "")
    # Starlette decodes headers as Latin-1; the keys of the settings are UTF-8.
    return key.strip(_WHITE_SPACE).encode("latin-1").decode("utf-8", "surrogateescape")


def _read_keys(setting: str, secret: SecretStr | None) -> tuple[bytes, ...]:
    # No message shows the value: it may be a key. The name of a file is none.
    if secret is None:
        return ()
    text = secret.get_secret_value()
    source = setting
    if text.startswith("@"):
        path = expand_home(text[1:])
        source = f"{setting}: the key file {path}"
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise StartError(f"{source} cannot be read: {reason}") from error
    keys = [key.strip() for line in text.splitlines() for key in line.split(",") if key.strip()]
    if not keys:
        raise StartError(f"{source} contains no keys")
    if any(len(key) < _MIN_CHARACTERS for key in keys):
        raise StartError(f"{setting}: a key must have at least {_MIN_CHARACTERS} characters")
    return tuple(_digest(key) for key in keys)


def _widen(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # a Unix socket has no address
        return address
    if isinstance(found, ipaddress.IPv4Address) or found.ipv4_mapped is not None:
        return address
    return str(ipaddress.ip_network((found, _IPV6_PREFIX), strict=False))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", errors="surrogateescape")).digest()


def _contains(digests: tuple[bytes, ...], key: str | None) -> bool:
    # All digests are compared, each in constant time, so that the time reveals nothing.
    offered = _digest(key or "")
    return sum(hmac.compare_digest(digest, offered) for digest in digests) > 0
