"""API keys: routes depend on `PREDICT`, `ADMINISTRATE` or `PUBLIC`; only health on none."""

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import logging
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import SecretStr

from service import errors
from service.settings import Settings, expand_home

_MIN_CHARACTERS = 16
# A comment after a key would be a part of it, and one after a comma a key; a file of another
# encoding has NULs, and of several files a byte order mark within.
_KEY = re.compile(
    r"(?!#)(?:(?P<name>[A-Za-z0-9._-]{1,64}):)?"
    rf"(?P<key>(?!\s)(?:(?!\s#)[^:\x00-\x1f\x7f\ufeff]){{{_MIN_CHARACTERS},}})"
)
_MAX_FILE_BYTES = 2**20
_BASIC = re.compile("(?i)basic +([a-z0-9+/=]+)")
_REREAD_SECONDS = 1.0
# Not part of a header's value (RFC 9110, section 5.5).
_WHITE_SPACE = " \t"
# The network of one home or office.
_IPV6_PREFIX = 64

Right = Literal["predict", "administrate"]

logger = logging.getLogger(__name__)

_BEARER = HTTPBearer(auto_error=False, scheme_name="bearer", description="A key, if keys are set.")
_HEADER = APIKeyHeader(
    name="X-API-Key", auto_error=False, scheme_name="header", description="The same key."
)


class Identity(NamedTuple):
    """Whose key a request has sent; `caller` is its name, or `key` and 8 digits of its digest."""

    caller: str
    may_administrate: bool


class KeyRing:
    """The keys of the settings as digests, so that a leak of this object reveals no key."""

    def __init__(self, settings: Settings) -> None:
        self._sets = (
            _KeySet("predict_keys", settings.predict_keys),
            _KeySet("admin_keys", settings.admin_keys, may_administrate=True),
        )
        # For good: a key file without keys is not used.
        self._needs_predict = bool(self._sets[0].identities)
        self.is_empty = not any(keys.identities for keys in self._sets)

    def identify(self, key: str) -> Identity | None:
        """Returns whose key this is; None if it is unknown."""
        # All digests are compared, each in constant time, so that the time reveals nothing.
        offered, identity_of_key = _digest(key), None
        for keys in self._sets:
            for digest, identity in keys.identities.items():
                if hmac.compare_digest(digest, offered):
                    identity_of_key = identity
        return identity_of_key

    def protects(self, right: Right | None) -> bool:
        """Returns whether a right, by default to predict, needs a key."""
        return not self.is_empty if right == "administrate" else self._needs_predict

    def reread(self, *, forced: bool = False) -> None:
        """Reads the key files that have changed, or all; an invalid one keeps its earlier keys."""
        for keys in self._sets:
            keys.reread(forced=forced)


class _KeySet:
    """The keys of one setting; `identities` are by digest, and replaced as a whole."""

    def __init__(
        self, setting: str, secret: SecretStr | None, *, may_administrate: bool = False
    ) -> None:
        self._setting, self._may_administrate = setting, may_administrate
        text = "" if secret is None else secret.get_secret_value()
        self._path = expand_home(text[1:]) if text.startswith("@") else None
        self._seen = _identify_file(self._path)  # before it is read
        self._failure: tuple[object, ...] = ()  # of the last reading
        self.identities = {} if secret is None else self._read(text)
        if self.identities:
            logger.info("read keys", extra={"setting": setting, "keys": len(self.identities)})
        if self._seen is None:  # such as a pipe, which has the keys once
            self._path = None

    def reread(self, *, forced: bool) -> None:
        if self._path is None:
            return
        seen = _identify_file(self._path)
        if seen is not None and seen == self._seen and not forced:
            return
        self._seen = None  # after an error, which may pass, the next call reads again
        try:
            if seen is None:
                source = f"{self._setting}: the key file {self._path}"
                raise errors.StartError(f"{source} is missing or is no regular file")
            self.identities = self._read("")
        except Exception as error:
            is_known = isinstance(error, errors.StartError)
            reason = str(error) if is_known else f"{self._setting}: {error!r}"
            if forced or (seen, reason) != self._failure:
                logger.error("%s; the earlier keys stay valid: correct the file", reason)
            self._failure = seen, reason
        else:
            self._seen, self._failure = seen, ()
            fields = {"setting": self._setting, "keys": len(self.identities)}
            logger.info("read the key file again", extra=fields)

    def _read(self, text: str) -> dict[bytes, Identity]:
        # No message shows the value: it may be a key. The name of a file is none.
        source = self._setting
        if self._path is not None:
            source += f": the key file {self._path}"
            try:
                with self._path.open("rb") as file:
                    content = file.read(_MAX_FILE_BYTES + 1)
                text = content.decode("utf-8-sig")
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
                raise errors.StartError(f"{source} cannot be read: {reason}") from error
            if len(content) > _MAX_FILE_BYTES:
                raise errors.StartError(f"{source} must have at most {_MAX_FILE_BYTES} bytes")
        # `splitlines` would end a comment at a form feed or a line separator too.
        lines = (line.strip() for line in re.split("[\r\n]", text))
        keys = (key.strip() for line in lines if line[:1] != "#" for key in line.split(","))
        matches = [_KEY.fullmatch(key) for key in keys if key]
        if not matches:
            raise errors.StartError(f"{source} contains no keys")
        if None in matches:
            raise errors.StartError(
                f"{source}: a key must be KEY or NAME:KEY: a name of 1 to 64 letters, digits, '.', "
                f"'_' and '-', a key of at least {_MIN_CHARACTERS} characters without colons and "
                "control characters; a comment is a line that begins with '#'"
            )
        named = {(_digest(match["key"]), match["name"]) for match in matches if match}
        may = self._may_administrate
        identities = {key: Identity(name or f"key {key.hex()[:8]}", may) for key, name in named}
        if len(identities) < len(named):
            raise errors.StartError(f"{source}: a key has two names: leave one of them")
        return identities


class Guard:
    """A dependency that checks the key, else the host name; a known key sets `state.caller`.

    With `takes_basic` it may be a Basic password, of any user.
    """

    def __init__(self, right: Right | None, *, takes_basic: bool = False) -> None:
        self._right = right
        self._takes_basic = takes_basic

    async def __call__(self, request: Request) -> None:
        """Raises `Unauthorized`, `Forbidden`, `RateLimited`, `HostNotAllowed` or `CrossSite`."""
        state = request.app.state
        ring: KeyRing = state.keys
        basic = self._takes_basic and _BASIC.match(request.headers.get("Authorization", ""))
        key = "" if ring.is_empty else _read_key(request, basic or None)
        identity = ring.identify(key) if key else None
        if identity is not None:
            request.state.caller = identity.caller
        if basic:  # browsers send it by themselves
            state.sites.check(request.scope)
        if not ring.protects(self._right):
            state.sites.check(request.scope)
        elif identity is None:
            if self._right is None:
                return
            if key:  # a guess
                state.wrong_keys.count(name_address(request))
            raise errors.Unauthorized(detail="The key is unknown." if key else None)
        elif self._right == "administrate" and not identity.may_administrate:
            raise errors.Forbidden


PUBLIC = Depends(Guard(None))
_DOCUMENTED = (Security(_BEARER), Security(_HEADER))
PREDICT = (Depends(Guard("predict")), *_DOCUMENTED)
PREDICT_BY_BASIC = (Depends(Guard("predict", takes_basic=True)), *_DOCUMENTED)
ADMINISTRATE = (Depends(Guard("administrate")), *_DOCUMENTED)

ROUTE_PROBLEMS = (
    *(errors.Unauthorized, errors.HostNotAllowed, errors.RateLimited),
    *(errors.InvalidParameters, errors.UnavailableError),
)
"""Errors of all routes but health and pages; others than GET have `CrossSite` too."""


async def keep_reading(ring: KeyRing) -> None:
    """Reads key files that change, until it is cancelled."""
    while True:
        await asyncio.sleep(_REREAD_SECONDS)
        ring.reread()


def name_address(request: Request) -> str:
    """Returns the name of a caller without a known key: its address (IPv6: its /64 network)."""
    name = "unknown" if request.client is None else request.client.host
    with suppress(ValueError):  # a Unix socket has none
        address = ipaddress.ip_address(name)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
            name = str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
    return f"address {name}"


def _read_key(request: Request, basic: re.Match[str] | None) -> str:
    if basic:
        with suppress(ValueError):
            return base64.b64decode(basic[1]).partition(b":")[2].decode("utf-8", "surrogateescape")
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip(_WHITE_SPACE):
        key = request.headers.get("X-API-Key", "")
    # Starlette decodes headers as Latin-1; the keys of the settings are UTF-8.
    return key.strip(_WHITE_SPACE).encode("latin-1").decode("utf-8", "surrogateescape")


def _identify_file(path: Path | None) -> tuple[int, ...] | None:
    """Returns what differs after a change, also of a link in the path; None for no regular file."""
    with suppress(OSError):
        if path is not None and stat.S_ISREG((status := path.stat()).st_mode):
            return status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns
    return None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", errors="surrogateescape")).digest()
