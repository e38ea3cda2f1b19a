"""Keys: who may predict, and who may change label sets.

In: the header `Authorization: Bearer KEY` or `X-API-Key: KEY`. Out: nothing, or 401 or 403;
`caller` of the request's state says who asks. Routes depend on `PREDICT` or `ADMINISTRATE`, in
which FastAPI's security classes are for the documentation; what depends on neither is public.
Next: `rates.py`, which counts by caller.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import SecretStr

from service.errors import StartError
from service.http.requests.errors import Forbidden, Unauthorized
from service.settings import Settings, expand_home

_FEWEST_CHARACTERS = 16
_FROM_FILE = "@"
_DIGEST_SHOWN = 16
# Around the value of a header, and no part of it (RFC 9110, section 5.5).
_WHITE_SPACE = " \t"
# A home or an office has this much of the IPv6 address space to itself.
_IPV6_PREFIX = 64

_BEARER = HTTPBearer(auto_error=False, scheme_name="bearer", description="A key, if keys are set.")
_HEADER = APIKeyHeader(
    name="X-API-Key", auto_error=False, scheme_name="header", description="The same key."
)


class KeyRing:
    """The keys of the service, as digests: nothing here can be leaked and then used."""

    def __init__(self, settings: Settings) -> None:
        """Reads the keys of the settings, from their files where they name files.

        Raises:
            StartError: a file cannot be read, or a key is too short to be one.
        """
        self._predict = _read_keys("predict_keys", settings.predict_keys)
        self._administrate = _read_keys("admin_keys", settings.admin_keys)

    @property
    def is_empty(self) -> bool:
        """Whether there is no key, and everyone may do everything."""
        return not (self._predict or self._administrate)

    def check_predict(self, key: str | None) -> None:
        """Does nothing if `key` may predict; without predict keys everyone may.

        Raises:
            Unauthorized: it may not.
        """
        if self._predict and not _holds((*self._predict, *self._administrate), key):
            raise Unauthorized(sent=bool(key))

    def check_administrate(self, key: str | None) -> None:
        """Does nothing if `key` may change label sets; without any keys everyone may.

        Raises:
            Forbidden: the key is good for predictions only.
            Unauthorized: there is no key, or it is unknown.
        """
        if self.is_empty or _holds(self._administrate, key):
            return
        raise Forbidden if _holds(self._predict, key) else Unauthorized(sent=bool(key))

    def name_caller(self, key: str | None, address: str) -> str:
        """Returns who asks: a known key's digest, or else the address (IPv6: its network)."""
        if key is not None and _holds((*self._predict, *self._administrate), key):
            return f"key {_digest(key).hex()[:_DIGEST_SHOWN]}"
        return f"address {_widen(address)}"


async def demand_predict_key(request: Request) -> None:
    """Checks that the client may predict, and names it."""
    ring, key = _identify(request)
    ring.check_predict(key)


async def demand_admin_key(request: Request) -> None:
    """Checks that the client may change label sets, and names it."""
    ring, key = _identify(request)
    ring.check_administrate(key)


_DOCUMENTED = (Security(_BEARER), Security(_HEADER))
PREDICT = (Depends(demand_predict_key), *_DOCUMENTED)
ADMINISTRATE = (Depends(demand_admin_key), *_DOCUMENTED)


def _identify(request: Request) -> tuple[KeyRing, str | None]:
    ring: KeyRing = request.app.state.keys
    key = None if ring.is_empty else _read_key(request)
    if request.app.state.rates is not None:  # nobody else wants to know
        address = request.client.host if request.client is not None else "unknown"
        request.state.caller = ring.name_caller(key, address)
    return ring, key


def _read_key(request: Request) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip(_WHITE_SPACE):
        key = request.headers.get("X-API-Key", "")
    # Starlette takes every byte for a character; the keys of the settings are UTF-8.
    return key.strip(_WHITE_SPACE).encode("latin-1").decode("utf-8", "surrogateescape")


def _read_keys(setting: str, secret: SecretStr | None) -> tuple[bytes, ...]:
    if secret is None:
        return ()
    text = secret.get_secret_value()
    if text.startswith(_FROM_FILE):
        try:
            text = expand_home(text[len(_FROM_FILE) :]).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(f"{setting}: the file cannot be read") from error
    keys = [key.strip() for line in text.splitlines() for key in line.split(",") if key.strip()]
    if not keys:
        raise StartError(f"{setting}: there is no key")
    if any(len(key) < _FEWEST_CHARACTERS for key in keys):
        raise StartError(f"{setting}: a key needs {_FEWEST_CHARACTERS} characters or more")
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


def _holds(digests: tuple[bytes, ...], key: str | None) -> bool:
    # Every digest is compared, each in constant time: how long it takes tells nothing.
    offered = _digest(key or "")
    return sum(hmac.compare_digest(digest, offered) for digest in digests) > 0
