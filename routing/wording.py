"""States and reasons in words: what a fixed code of the contract means to the person who reads it.

The one home of these sentences: the console, the explanations and the command line take them from here, so
that a code means the same wherever it is told. A code without one is told as it is, without underscores.
"""

import datetime
import re
from collections.abc import Sequence
from typing import Final

_READINESS: Final = {
    "availability_not_configured": "nothing is configured to be probed",
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

_ATTEMPTS: Final = {
    "served": "it was served",
    "served_output_clamped": "it was served, with its output limited to the tier's",
    "client_disconnected": "its caller left before the answer was complete",
    "backend_error": "the upstream failed before the answer began",
    "completion_error": "the upstream failed before the answer was complete",
    "over_context": "its prompt was over the tier's context limit",
    "media_admission_image_limit": "it held more images than the tier takes",
    "media_admission_video_limit": "it held more videos than the tier takes",
    "media_admission_invalid_policy": "it held media, and the tier's media policy is incomplete",
    "tools_unsupported": "it needed tools, which the tier does not serve",
    "unavailable": "the tier was not available",
    "quiesced": "the tier was quiesced",
    "backend_unbound": "it asked for something that the tier's upstream cannot be sent",
    "not_admitted": (
        "no member was chosen: the record does not say whether for readiness, quiesce or ceilings, of the "
        "tier or of its members"
    ),
    "request_rejected": "it was refused for what it asked, before a member was chosen",
}

_STEPS: Final = {
    "promote": "Keep both configurations",
    "resume": "Resume",
    "roll_back": "Take back",
    "recover": "Take back by itself",
    "validate": "Validate the bytes again",
    "quiesce": "Quiesce {}",
    "drain": "Drain {}",
    "activate": "Move the pointer and swap",
    "verify": "Verify {}",
    "readmit": "Readmit {}",
    "reopen": "Reopen {}",
    "restore": "Go back to the previous snapshot",
}
_OUTCOMES: Final = {
    "already_quiesced": "was quiesced already",
    "timed_out": "requests were still running at the end of the time",
    "reopened": "was opened by somebody meanwhile",
    "no_open_member": "every member is quiesced: each is verified by its own readmit",
    "left_quiesced": "was quiesced again by somebody meanwhile, and stays so",
    "readiness_passed": "verified",
    "readmitted_unverified": "unverified",
    "rolled_back": "taken back",
    "not_promoted": "nothing was changed",
    "superseded": "overtaken by another configuration",
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
    return plain(reason)


def readmit(reason: str) -> str:
    """How a readmit ended in words; a refusal's reason may be a readiness reason."""
    return _READMIT.get(reason) or readiness(reason)


def attempt(reason: str) -> str:
    """What became of a request: an attempt's reason, or a selection's, in words."""
    return _ATTEMPTS.get(reason) or plain(reason)


def step(name: str, scope: str = "") -> str:
    """A step of an activation or a promotion, as what it does to ``scope``."""
    return _STEPS[name].format(scope).strip() if name in _STEPS else sentence(plain(name)).removesuffix(".")


def outcome(code: str) -> str:
    """How a step, a drain or a change ended, in words; also of an audit entry's result."""
    return _OUTCOMES.get(code) or readiness(code)


def plain(code: str) -> str:
    """A code that has no sentence of its own."""
    return code.replace("_", " ")


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
