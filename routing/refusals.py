"""What a service answers when it does not do what it was asked: one exception for every adapter to show."""

from collections.abc import Mapping
from typing import Final

SENTENCES: Final[Mapping[str, str]] = {
    # Any change.
    "cross_site": "A page of another site may not ask for this.",
    "not_ledger_owner": "Another process is serving. Try again shortly.",
    "management_busy": "The management is at its limit. Try again shortly.",
    "not_configured": "No configuration is active.",
    "not_persisted": "It could not be stored; nothing has changed.",
    # Transitions.
    "tier_required": "A member is named within its tier.",
    "unknown_tier": "No such tier.",
    "direct_tier": "A direct tier has no members.",
    "unknown_member": "No such member.",
    "scope_not_quiesced": "The scope is not quiesced.",
    "drain_in_progress": "The scope is being drained already.",
    "readmit_refused": "The scope stays quiesced: it could not be verified.",
    "identity_not_configured": "The scope stays quiesced: its tier has no identity to verify.",
    "intent_not_persisted": "The scope is quiesced, but the database could not be brought to agree.",
    "document_too_large": "The intent document is larger than 1 MiB.",
    "document_malformed": "The intent document is not of its closed form.",
    # Keys.
    "name_taken": "There is a key of this name.",
    "unknown_key": "There is no such key.",
    # Snapshots and their activation.
    "unknown_snapshot": "There is no such snapshot.",
    "activation_in_progress": "Another snapshot is being activated.",
    "activation_not_persisted": "The snapshot could not be made the active one; nothing has changed.",
    "not_drained": "What changes still admits or still runs requests; nothing has changed.",
    "verification_failed": "What changed could not be verified; the previous snapshot is active again.",
    "restore_not_persisted": (
        "What changed could not be verified and stays quiesced; the pointer could not be moved back."
    ),
    # Promotions.
    "promotion_unverifiable": "The tier has no identity by which its new place could be verified.",
    "unknown_resource": "The topology has no such resource.",
    "resource_without_endpoint": "The resource has no endpoint.",
    "resource_in_use": "The resource is a member of a replica tier.",
    "resource_serves_already": "The tier is served by that resource already.",
    "config_not_editable": "The active configuration can't be edited in place.",
    "promotion_in_progress": "A promotion is at work.",
    "promotion_unfinished": "A promotion was stopped half-way. Resume it or roll it back first.",
    "no_stopped_promotion": "There is no promotion that was stopped.",
    "promotion_superseded": "Another configuration has been activated since.",
    "promotion_unverified": "The tier stays quiesced: it could not be verified.",
    "promotion_not_persisted": "The promotion could not be recorded; nothing has changed.",
    "promotion_not_recorded": "It is done, but could not be recorded. Resume the promotion to try again.",
}
"""What refused, in one sentence by its code: REST, the console and the command line say the same."""

KEY_RULES: Final[Mapping[str, str]] = {
    "name": "A name has 1 to 100 letters, digits, blanks, _ . + or -, and is neither a key nor an address.",
    "scopes": "Scopes are one or more of infer, observe, operate and configure, each once.",
    "max_concurrency": "A key's requests at a time are 1 to 100,000.",
    "expires_at": "A key expires in the future.",
}
"""The rule of each field of a key, as a refusal tells it."""


class Refused(Exception):
    """A request was refused.

    ``status`` is its HTTP status, ``code`` a fixed word, the text fixed; none of it repeats input. ``field``
    names what is at fault in the request, by a name of the contract. ``extra`` goes beside the error.
    ``told`` is set once the refusal is logged and counted.
    """

    def __init__(
        self,
        status: int,
        code: str,
        text: str,
        *,
        field: str | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.field = field
        self.extra = dict(extra or {})
        self.told = False


def not_ledger_owner() -> Refused:
    """This process can't act, since another one owns the ledger."""
    return Refused(503, "not_ledger_owner", SENTENCES["not_ledger_owner"])
