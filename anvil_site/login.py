"""Logging in at the console, slowed down for who guesses.

Failures are counted in this process's memory, which is the only one that serves: no table that a stranger
can fill, and nothing is looked up or hashed for an attempt that is over its limit. Three counts bound it,
each within `WINDOW` seconds: of a name from one address, of one address, of a name from anywhere. Behind a
proxy on this machine every address is the proxy's, so that one of them is left out. A password is hashed for
two attempts at a time: hashing costs as much as hundreds of requests.

Whoever knows a name can keep it from logging in by failing often enough. Sessions that are open go on, and
the command line works with a key (`anvil router ...`), so that nobody is kept from quiescing.
"""

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from django.contrib.admin.forms import AdminAuthenticationForm
from django.core.exceptions import ValidationError

from routing import audit
from routing.audit import Through
from routing.refusals import Refused

WINDOW: Final = 300.0
"""Seconds after its first failure that a count lasts."""

PER_NAME_AND_ADDRESS: Final = 10
PER_ADDRESS: Final = 50
PER_NAME: Final = 100
MAX_COUNTS: Final = 10_000
"""Counts that are kept; the oldest goes first."""

HASHING_AT_ONCE: Final = 2
HASHING_PATIENCE: Final = 3.0
"""Seconds to wait for a turn at hashing."""

_ANY: Final = ""


class Throttle:
    """Counts of failures. Thread-safe."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._counts: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        self._lock = threading.Lock()

    def is_over(self, name: str, address: str) -> bool:
        """Whether no further attempt may be made for now."""
        with self._lock:
            return any(self._count(key) >= limit for key, limit in _limits(name, address))

    def failed(self, name: str, address: str) -> None:
        """An attempt has failed."""
        with self._lock:
            for key, _ in _limits(name, address):
                since, count = self._counts.get(key, (self._monotonic(), 0))
                if self._monotonic() - since >= WINDOW:
                    since, count = self._monotonic(), 0
                self._counts[key] = (since, count + 1)
            while len(self._counts) > MAX_COUNTS:
                self._counts.popitem(last=False)

    def succeeded(self, name: str, address: str) -> None:
        """Somebody who knows the password was let in: what failed before it was a slip."""
        with self._lock:
            self._counts.pop((_fold(name), address), None)

    def _count(self, key: tuple[str, str]) -> int:
        since, count = self._counts.get(key, (0.0, 0))
        return count if self._monotonic() - since < WINDOW else 0


def _fold(name: str) -> str:
    return name.casefold()[:150]


def _limits(name: str, address: str) -> list[tuple[tuple[str, str], int]]:
    limits = [((_fold(name), address), PER_NAME_AND_ADDRESS), ((_fold(name), _ANY), PER_NAME)]
    if not _is_loopback(address):
        limits.append(((_ANY, address), PER_ADDRESS))
    return limits


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        # A Unix socket: the proxy's, too.
        return True


throttle: Final = Throttle()
_hashing: Final = threading.BoundedSemaphore(HASHING_AT_ONCE)


class LoginForm(AdminAuthenticationForm):
    """The admin's own, behind the throttle."""

    def clean(self) -> dict[str, Any]:
        name = self.cleaned_data.get("username") or ""
        address = str(self.request.META.get("REMOTE_ADDR") or "") if self.request is not None else ""
        if throttle.is_over(name, address) or not _hashing.acquire(timeout=HASHING_PATIENCE):
            raise _refusal("too_many_attempts", "Too many attempts. Wait a few minutes, then try again.")
        try:
            cleaned: dict[str, Any] = super().clean()
        except ValidationError:
            throttle.failed(name, address)
            _tell("invalid_credentials")
            raise
        finally:
            _hashing.release()
        throttle.succeeded(name, address)
        return cleaned


def _refusal(code: str, text: str) -> ValidationError:
    _tell(code)
    return ValidationError(text, code=code)


def _tell(code: str) -> None:
    """One log line and a count. Not the name: people type their password into its field."""
    audit.tell(Refused(429, code, code), action="login", actor="-", through=Through.CONSOLE)
