"""States and reasons in words: what a fixed code of the contract means to the person who reads it."""

import datetime
import re
from collections.abc import Sequence
from typing import Final

_READINESS: Final = {
    "availability_not_configured": "nothing is configured to be probed, so it counts as ready",
    "health_passed": "its health check passed",
    "identity_passed": "it is healthy and serves the expected model",
    "identity_oversized": "its list of models is too large to be read",
    "identity_malformed": "its list of models could not be understood",
    "identity_mismatch": "it serves another model than the expected one",
    "probe_pending": "no probe of it has been completed yet",
    "probe_invalidated": "what was known of it no longer counts, and it has not been probed since",
    "probe_superseded": "a newer probe of it is under way",
}
_PROBED: Final = {"health": "its health check", "identity": "the question for its models"}
_FAULTS: Final = {
    "timeout": "was not answered in time",
    "refused": "found the connection refused",
    "reset": "lost the connection",
    "dns": "could not find its host",
    "tls": "failed over TLS",
    "protocol": "was answered with something that is not HTTP",
    "other": "could not be sent",
}
_HTTP: Final = re.compile(r"(health|identity)_http_([1-9][0-9]{2})")
_TRANSPORT: Final = re.compile(r"(health|identity)_transport_([a-z]+)")

_READMIT: Final = {
    "readiness_passed": "it was verified",
    "readmitted_unverified": "nothing could be verified, which you accepted",
    "scope_not_quiesced": "it is not quiesced",
    "identity_not_configured": "its tier has no identity to verify: it can only be readmitted unverified",
    "all_members_quiesced": "every member of it is quiesced: readmit a member first",
    "quiesced_again": "it was quiesced again while it was being verified",
    "intent_not_persisted": "the database could not be brought to agree",
}

STRATEGIES: Final = {
    "direct": "Every request goes to the one upstream.",
    "round_robin": "Members that are ready take turns.",
    "capacity": "The ready member with the lowest load takes the next request.",
}
"""How a tier chooses who serves, by its strategy."""

_NUMBERS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def readiness(reason: str) -> str:
    """A readiness reason (projections: "Readiness reasons") in words, as the end of "it is not ready: "."""
    if reason in _READINESS:
        return _READINESS[reason]
    if match := _HTTP.fullmatch(reason):
        return f"{_PROBED[match[1]]} was answered {match[2]}"
    if match := _TRANSPORT.fullmatch(reason):
        return f"{_PROBED[match[1]]} {_FAULTS.get(match[2], _FAULTS['other'])}"
    return reason


def readmit(reason: str) -> str:
    """How a readmit ended in words; a refusal's reason may be a readiness reason."""
    return _READMIT.get(reason) or readiness(reason)


def count(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun, the small ones spelled out: ``one request``, ``12 requests``."""
    word = _NUMBERS[number] if 0 <= number < len(_NUMBERS) else f"{number:,}"
    return f"{word} {noun if number == 1 else plural or noun + 's'}"


def listed(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def ago(moment: datetime.datetime, now: datetime.datetime) -> str:
    """How long before ``now`` a moment was, in its largest fitting unit: ``12 min ago``."""
    seconds = max(0, int((now - moment).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def sentence(text: str) -> str:
    """``text`` as a sentence: its first letter large, a full stop at its end."""
    return f"{text[:1].upper()}{text[1:]}." if text else ""
