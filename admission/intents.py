"""Quiesce intent: the rows that outlive the process.

One row stands for one quiesced scope. The ledger acts first and the row follows; whoever changes both keeps
that order (`routing.transitions`). The rows are read before the first admission and at every swap. The same
intent as a document is in `admission.intent_document`.
"""

from admission.core import QuiesceIntent
from admission.identifiers import PROMOTION_REASON, is_reason_code, is_safe_id
from admission.intent_document import IntentError
from admission.models import AdmissionIntent


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
