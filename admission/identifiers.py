"""The grammars of ids, reasons and references: one home for every name that may be shown.

Every predicate takes any object and answers False for what is not exactly a built-in ``str`` of its
grammar, so that callers can hand it untrusted values. Sources: the replica contract (ids, references,
digests, labels), the transition contract (reason codes), and the projections (correlation ids;
what no surface may hold: plain names).
"""

import re
from typing import Final, TypeGuard

DEFAULT_REASON: Final = "operator"
"""The reason of a quiesce that named none."""

PROMOTION_REASON: Final = "promotion"
"""The reason that belongs to a promotion in progress: a tier's is not restored at start."""

RESERVED_ALIASES: Final = frozenset({"capacity", "capabilities", "fingerprints"})
"""Path segments below ``/v1/models/`` that name projections, so no alias may."""

_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_ALIAS = re.compile(r"[a-z0-9][a-z0-9._:/-]{0,127}")
_REASON = re.compile(r"[A-Za-z0-9._-]{1,128}")
_QUALIFICATION_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}")
_PLAIN_NAME = re.compile(r"(?!.*[0-9]+(?:\.[0-9]+){3})[A-Za-z0-9](?:[A-Za-z0-9_.+ -]*[A-Za-z0-9_.+-])?")
# Four numbers with dots between them are an address, and without : and / there is no other form of one.
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CORRELATION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_ENVIRONMENT_NAME = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")
# How vendors begin their keys, and an unbroken run of letters and digits that nobody would choose as a word.
_SECRET_PREFIX = re.compile(
    r"(?:sk|pk|rk)[-_]|hf_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|nvapi-|eyJ|AIza|(?i:bearer )"
)
_OPAQUE_RUN = re.compile(r"(?=[A-Za-z+/=]{0,128}[0-9])[A-Za-z0-9+/=]{20,}")


def _matches(pattern: re.Pattern[str], value: object) -> TypeGuard[str]:
    return type(value) is str and pattern.fullmatch(value) is not None


def is_safe_id(value: object) -> TypeGuard[str]:
    """Whether ``value`` may name a tier, member, host, resource, purpose model or audio route."""
    return _matches(_ID, value)


def is_reason_code(value: object) -> TypeGuard[str]:
    """Whether ``value`` may be the recorded reason of a transition (1 to 128 characters)."""
    return _matches(_REASON, value)


def is_qualification_ref(value: object) -> TypeGuard[str]:
    """Whether ``value`` is an opaque label of evidence; never a path or URL (it has no slash)."""
    return _matches(_QUALIFICATION_REF, value)


def is_label(value: object) -> TypeGuard[str]:
    """Whether ``value`` may be a declared model revision or engine version."""
    return _matches(_LABEL, value)


def is_plain_name(value: object, *, limit: int) -> TypeGuard[str]:
    """Whether ``value`` may be a name that people choose and metrics and projections show.

    1 to ``limit`` letters, digits, blanks and _ . + -, the first a letter or digit, the last no blank:
    never a URL, an address with its port, or an IP address.
    """
    return type(value) is str and len(value) <= limit and _matches(_PLAIN_NAME, value)


def is_digest(value: object) -> TypeGuard[str]:
    """Whether ``value`` is ``sha256:`` and 64 lower-case hex digits."""
    return _matches(_DIGEST, value)


def is_correlation_id(value: object) -> TypeGuard[str]:
    """Whether ``value`` may be kept as a request, run or task id; anything else counts as absent."""
    return _matches(_CORRELATION_ID, value)


def is_secret_shaped(value: str) -> bool:
    """Whether ``value`` looks like a key or token and must not be shown to anyone, not even its owner.

    It does with a vendor's prefix, or with 20 or more letters and digits in one run, at least one a digit.
    """
    return _SECRET_PREFIX.match(value) is not None or _OPAQUE_RUN.search(value) is not None


def is_environment_name(value: object) -> TypeGuard[str]:
    """Whether ``value`` can name an environment variable that holds a secret, and is not one itself.

    Names are in capitals, so that a key pasted in place of its name is refused nearly always.
    """
    return type(value) is str and _matches(_ENVIRONMENT_NAME, value) and not is_secret_shaped(value)


def normalise_alias(value: str) -> str:
    """The form in which an alias is stored and looked up: trimmed and lower-cased."""
    return value.strip().lower()


def is_alias(value: object) -> TypeGuard[str]:
    """Whether a normalised ``value`` may be an alias (the reserved words may not)."""
    return _matches(_ALIAS, value) and value not in RESERVED_ALIASES
