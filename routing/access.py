"""Who may ask for what: keys and scopes, held in memory so that a request costs no query.

The ring knows SHA-256 digests only, never a key. Verification compares digests of equal length in constant
time after one dictionary look-up by digest, which reveals nothing about a key that is not already known.
"""

import enum
import hashlib
import hmac
import ipaddress
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

BOOTSTRAP_NAME: Final = "bootstrap"
"""The name under which requests with the token of ``[server].auth_env`` are counted."""

ANONYMOUS_NAME: Final = "anonymous"


class Scope(enum.StrEnum):
    """What a key may be used for."""

    INFER = "infer"
    OBSERVE = "observe"
    OPERATE = "operate"
    CONFIGURE = "configure"


ALL_SCOPES: Final = frozenset(Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key as the ring holds it. ``expires_at`` is wall-clock seconds; the bootstrap has no ``key_id``."""

    key_id: int | None
    name: str
    digest: bytes = field(repr=False)
    scopes: frozenset[Scope]
    max_concurrency: int | None = None
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose request this is: the key's name, its scopes and its place counter."""

    name: str
    scopes: frozenset[Scope]
    key_id: int | None = None
    max_concurrency: int | None = None

    def may(self, *scopes: Scope) -> bool:
        """Whether any of ``scopes`` is held."""
        return any(scope in self.scopes for scope in scopes)


ANONYMOUS: Final = Principal(ANONYMOUS_NAME, ALL_SCOPES)
"""Everybody, when the process was started with authentication off."""


def digest(secret: str) -> bytes:
    """The SHA-256 under which a key is stored and looked up (keys are 256 random bits: no salt needed)."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def is_loopback_bind(address: str) -> bool:
    """Whether ``HOST:PORT`` can be reached from this machine alone: the only bind without authentication.

    Names other than ``localhost``, an empty host and a Unix socket, which some proxy is in front of, are not.
    """
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return False
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")

_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[^\[\]:/?#@]+)(?::[0-9]+)?", re.IGNORECASE)


class CrossSite(Exception):
    """A page of another site sent the request, and there is no key that it would have had to know."""


def is_cross_site(origin: str | None, fetch_site: str | None, own_hosts: Collection[str]) -> bool:
    """Whether a browser sent this request for a page that is not ours.

    ``origin`` and ``fetch_site`` are the headers Origin and Sec-Fetch-Site, which no page can set, or leave
    out of a request that changes something; programs send neither. ``own_hosts`` are names as in
    ANVIL_ALLOWED_HOSTS: ``*`` is every host, ``.example.com`` that one and all below it.
    """
    if fetch_site is not None and fetch_site.strip().lower() == "cross-site":
        return True
    if origin is None:
        return False
    found = _ORIGIN.fullmatch(origin.strip())
    return found is None or not any(_is_host(found[1].lower(), name.lower()) for name in own_hosts)


def _is_host(host: str, name: str) -> bool:
    return name in ("*", host) or (name.startswith(".") and (host.endswith(name) or host == name[1:]))


class KeyRing:
    """The keys that are valid now. Reading takes no lock: each change replaces one immutable mapping.

    Without keys (``enabled`` false) pages may ask for something only under one of ``own_hosts``.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        own_hosts: Collection[str] = LOOPBACK_HOSTS,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.enabled = enabled
        self._own_hosts = tuple(own_hosts)
        self._wall_clock = wall_clock
        self._by_digest: dict[bytes, Key] = {}
        self._in_flight: dict[str, int] = {}
        self._last_used: dict[int, float] = {}
        self._revoked: set[int] = set()
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        return not self._by_digest

    def replace(self, keys: Iterable[Key]) -> None:
        """Make ``keys`` all that have a row, except any that was revoked here; others fail from now on."""
        with self._lock:
            bootstrap = {value: key for value, key in self._by_digest.items() if key.key_id is None}
            stored = {key.digest: key for key in keys if key.key_id not in self._revoked}
            self._by_digest = {**stored, **bootstrap}

    def set_bootstrap(self, secret: str | None) -> None:
        """Make ``secret`` the one key without a row, with every scope; None or empty for none at all."""
        with self._lock:
            ring = {value: key for value, key in self._by_digest.items() if key.key_id is not None}
            if secret:
                key = Key(key_id=None, name=BOOTSTRAP_NAME, digest=digest(secret), scopes=ALL_SCOPES)
                ring[key.digest] = key
            self._by_digest = ring

    def add(self, key: Key) -> None:
        """Let one more key in."""
        with self._lock:
            self._by_digest = {**self._by_digest, key.digest: key}

    def revoke(self, key_id: int) -> None:
        """End a key for the life of this process, whatever a later `replace` says."""
        with self._lock:
            kept = {value: key for value, key in self._by_digest.items() if key.key_id != key_id}
            if len(kept) != len(self._by_digest):
                self._revoked.add(key_id)
                self._by_digest = kept

    def is_foreign(self, environ: Mapping[str, Any]) -> bool:
        """Whether a request is refused for the page that sent it: never while keys are asked for."""
        return not self.enabled and is_cross_site(
            environ.get("HTTP_ORIGIN"), environ.get("HTTP_SEC_FETCH_SITE"), self._own_hosts
        )

    def identify(self, environ: Mapping[str, Any]) -> Principal | None:
        """The principal that a request is from, by the headers in its WSGI environ; None for nobody.

        Raises CrossSite, with authentication off alone: a page knows no key, and browsers send none by
        themselves.
        """
        if self.is_foreign(environ):
            raise CrossSite
        return self.verify(presented_secret(environ.get("HTTP_AUTHORIZATION"), environ.get("HTTP_X_API_KEY")))

    def verify(self, secret: str | None) -> Principal | None:
        """The principal behind ``secret``, or None; with authentication off everybody is anonymous."""
        if not self.enabled:
            return ANONYMOUS
        if not secret:
            return None
        offered = digest(secret)
        key = self._by_digest.get(offered)
        if key is None or not hmac.compare_digest(key.digest, offered):
            return None
        now = self._wall_clock()
        if key.expires_at is not None and now >= key.expires_at:
            return None
        if key.key_id is not None:
            self._last_used[key.key_id] = now
        return Principal(key.name, key.scopes, key.key_id, key.max_concurrency)

    def enter(self, principal: Principal) -> bool:
        """Take one of the key's own places; False when all are taken. Pair with ``leave``."""
        with self._lock:
            running = self._in_flight.get(principal.name, 0)
            if principal.max_concurrency is not None and running >= principal.max_concurrency:
                return False
            self._in_flight[principal.name] = running + 1
        return True

    def leave(self, principal: Principal) -> None:
        """Give the place back that ``enter`` took."""
        with self._lock:
            left = self._in_flight.get(principal.name, 0) - 1
            if left > 0:
                self._in_flight[principal.name] = left
            else:
                self._in_flight.pop(principal.name, None)

    def in_flight(self) -> dict[str, int]:
        """How many requests are running now, by key name; names without any are absent."""
        with self._lock:
            return dict(self._in_flight)

    def drain_last_used(self) -> dict[int, float]:
        """When each key was last used since the last call (wall-clock seconds), for the row's column."""
        used, self._last_used = self._last_used, {}
        # A copy: a request that was verified meanwhile may still write to the old one.
        return dict(used)


def presented_secret(authorization: str | None, api_key: str | None) -> str | None:
    """The secret of ``Authorization: Bearer`` or, without one, of ``x-api-key``."""
    if authorization is not None:
        scheme, _, value = authorization.partition(" ")
        if scheme.lower() == "bearer" and value.strip():
            return value.strip()
        return None
    return api_key.strip() if api_key else None
