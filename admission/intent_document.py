"""The closed legacy document of quiesce intent, read strictly and written sorted.

It is what routers before this one kept in a file, and still a way to carry intent from one router to another:

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
