"""Quiesce intent: the rows that outlive the process, and the closed legacy document.

One row stands for one quiesced scope. The ledger acts first and the row follows; whoever changes both keeps
that order (`routing.transitions`). The rows are read before the first admission and at every swap.

The legacy document is what routers before this one kept in a file, and still a way to carry intent from one
router to another:

    {"version": 1,
     "tiers": {TIER_ID: {"state": "quiesced", "reason": REASON}},
     "members": {TIER_ID: {MEMBER_ID: REASON}}}            absent when no member is quiesced

Errors: IntentError(ValueError), with a code and a fixed text that repeats no input.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from admission import strict_json
from admission.core import AdmissionSnapshot, QuiesceIntent
from admission.identifiers import PROMOTION_REASON, is_reason_code, is_safe_id
from admission.models import AdmissionIntent

MAX_DOCUMENT_BYTES: Final = 1_048_576
DOCUMENT_VERSION: Final = 1


class IntentError(ValueError):
    """Intent that can't be trusted; ``code`` is one of the keys below, the text fixed."""

    _TEXTS: Final = {
        "document_too_large": "the intent document is larger than 1 MiB",
        "document_malformed": "the intent document is not of its closed form",
        "row_malformed": "a stored quiesce intent is not of its grammar",
    }

    def __init__(self, code: str) -> None:
        super().__init__(self._TEXTS[code])
        self.code = code


# Rows --------------------------------------------------------------------------------------------------


def load() -> tuple[QuiesceIntent, ...]:
    """The intents to hold before anything is admitted, those of scopes that are not configured included.

    A tier's intent with reason ``promotion`` is left out: it belonged to a promotion of a process that has
    ended. A member's is kept. Raises IntentError ``row_malformed`` for a row that breaks a grammar.
    """
    found: list[QuiesceIntent] = []
    for row in AdmissionIntent.objects.all():
        if not (
            is_safe_id(row.tier_id)
            and (row.member_id == "" or is_safe_id(row.member_id))
            and is_reason_code(row.reason)
        ):
            raise IntentError("row_malformed")
        if row.member_id or row.reason != PROMOTION_REASON:
            found.append((row.tier_id, row.member_id or None, row.reason))
    return tuple(found)


def store(tier_id: str, member_id: str | None, reason: str, *, actor: str) -> None:
    """Keep a scope quiesced; one that has a row gets the new reason and actor."""
    AdmissionIntent.objects.update_or_create(
        tier_id=tier_id, member_id=member_id or "", defaults={"reason": reason, "actor": actor}
    )


def remove(tier_id: str, member_id: str | None) -> None:
    """Forget one scope's intent; its tier's and its members' are rows of their own."""
    AdmissionIntent.objects.filter(tier_id=tier_id, member_id=member_id or "").delete()


def forget_promotions() -> None:
    """Remove the tiers' intents of promotions that ended with their process."""
    AdmissionIntent.objects.filter(member_id="", reason=PROMOTION_REASON).delete()


# The legacy document -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentDocument:
    """What a legacy document says: reasons by tier, and by tier and member; ids in its order.

    Member ids and reasons are of their grammars. A tier id is some non-empty text, since the document may be
    about tiers that were removed.
    """

    tiers: Mapping[str, str]
    members: Mapping[str, Mapping[str, str]]

    @property
    def intents(self) -> tuple[QuiesceIntent, ...]:
        """What is to be quiesced. A promotion's hold on a tier is not carried over, a member's is."""
        of_tiers = [
            (tier_id, None, reason) for tier_id, reason in self.tiers.items() if reason != PROMOTION_REASON
        ]
        of_members = [
            (tier_id, member_id, reason)
            for tier_id, members in self.members.items()
            for member_id, reason in members.items()
        ]
        return (*of_tiers, *of_members)


def parse_document(data: bytes) -> IntentDocument:
    """Read a legacy document of at most 1 MiB, whole or not at all.

    Raises IntentError: ``document_too_large``, or ``document_malformed`` for anything but exactly the form
    above, entries about tiers that are not configured included.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise IntentError("document_too_large")
    try:
        return _checked_document(strict_json.loads(data))
    except ValueError:
        raise IntentError("document_malformed") from None


def _checked_document(value: object) -> IntentDocument:
    document = _checked_object(value)
    if document.keys() - {"members"} != {"version", "tiers"}:
        raise ValueError
    version = document["version"]
    if type(version) is not int or version != DOCUMENT_VERSION:
        raise ValueError
    tiers = {
        _checked_tier_id(tier_id): _checked_tier_state(state)
        for tier_id, state in _checked_object(document["tiers"]).items()
    }
    members = {
        _checked_tier_id(tier_id): _checked_members(reasons)
        for tier_id, reasons in _checked_object(document.get("members", {})).items()
    }
    return IntentDocument(tiers=tiers, members=members)


def _checked_object(value: object) -> dict[str, object]:
    if type(value) is not dict:
        raise ValueError
    return value


def _checked_tier_id(tier_id: str) -> str:
    if not tier_id:
        raise ValueError
    return tier_id


def _checked_tier_state(value: object) -> str:
    state = _checked_object(value)
    if state.keys() != {"state", "reason"} or state["state"] != "quiesced":
        raise ValueError
    return _checked_reason(state["reason"])


def _checked_members(value: object) -> dict[str, str]:
    reasons = _checked_object(value)
    if not all(is_safe_id(member_id) for member_id in reasons):
        raise ValueError
    return {member_id: _checked_reason(reason) for member_id, reason in reasons.items()}


def _checked_reason(value: object) -> str:
    if not is_reason_code(value):
        raise ValueError
    return value


def serialise_document(snapshots: Iterable[AdmissionSnapshot]) -> bytes:
    """The legacy document of what one reading of the ledger says is quiesced: sorted, without blanks."""
    tiers: dict[str, dict[str, str | None]] = {}
    members: dict[str, dict[str, str | None]] = {}
    for snapshot in snapshots:
        if snapshot.state == "quiesced":
            tiers[snapshot.tier_id] = {"state": "quiesced", "reason": snapshot.reason}
        reasons = {
            member.member_id: member.reason for member in snapshot.members if member.state == "quiesced"
        }
        if reasons:
            members[snapshot.tier_id] = reasons
    document: dict[str, object] = {"version": DOCUMENT_VERSION, "tiers": tiers}
    if members:
        document["members"] = members
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")
