"""API keys: made, revoked, and brought into the ring that requests are checked against.

A key is 256 random bits, shown once by whoever made it and kept nowhere: its row and the ring hold its
SHA-256. A revoke ends the key in memory first, so that not even a database that fails keeps it alive.
"""

import datetime
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import django.db
from django.db import transaction
from django.utils import timezone

from admission.identifiers import is_plain_name, is_secret_shaped
from admission.replica_scheduler import MAX_MEMBER_CONCURRENCY
from routing import audit
from routing.access import ANONYMOUS_NAME, BOOTSTRAP_NAME, Key, Scope, digest
from routing.audit import Through
from routing.models import ApiKey
from routing.refusals import KEY_RULES, SENTENCES, Refused, not_ledger_owner

if TYPE_CHECKING:
    from routing.router import Router

KEY_PREFIX: Final = "anvil_"
RANDOM_BYTES: Final = 32
SHOWN_CHARACTERS: Final = 12
"""Of a key, how many its row keeps for people to know it by; 220 bits of it stay unknown."""

MAX_NAME_CHARACTERS: Final = 100
MAX_CONCURRENCY: Final = MAX_MEMBER_CONCURRENCY


def fault_in(
    *, name: object, scopes: object, max_concurrency: object, expires_at: datetime.datetime | None
) -> tuple[str, str] | None:
    """The first field that breaks its rule, with the rule; None when all hold. Values may be of any type."""
    if not is_key_name(name):
        return "name", KEY_RULES["name"]
    if not _are_scopes(scopes):
        return "scopes", KEY_RULES["scopes"]
    if max_concurrency is not None and not (
        type(max_concurrency) is int and 1 <= max_concurrency <= MAX_CONCURRENCY
    ):
        return "max_concurrency", KEY_RULES["max_concurrency"]
    if expires_at is not None and expires_at <= timezone.now():
        return "expires_at", KEY_RULES["expires_at"]
    return None


def is_key_name(value: object) -> bool:
    """Whether ``value`` may name a key: a metric label and a word in the audit trail, never a secret."""
    return (
        is_plain_name(value, limit=MAX_NAME_CHARACTERS)
        and value not in (BOOTSTRAP_NAME, ANONYMOUS_NAME)
        and not value.startswith(KEY_PREFIX)
        and not is_secret_shaped(value)
    )


def _are_scopes(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(type(scope) is str and scope in set(Scope) for scope in value)
        and len(set(value)) == len(value)
    )


def create(
    router: "Router",
    *,
    name: str,
    scopes: Sequence[str],
    max_concurrency: int | None = None,
    expires_at: datetime.datetime | None = None,
    actor: str,
    through: Through,
) -> tuple[ApiKey, str]:
    """Make a key that is valid at once: its row, and the key itself, which nobody can be told again.

    Raises Refused: 400 for a field that breaks its rule, 409 ``name_taken`` (a revoked key keeps its name),
    503 when this process does not own the ledger or the key could not be stored; then there is no such key.
    """
    with audit.telling_refusals("create_key", actor=actor, through=through):
        if not router.owns_ledger:
            raise not_ledger_owner()
        fault = fault_in(name=name, scopes=scopes, max_concurrency=max_concurrency, expires_at=expires_at)
        if fault is not None:
            raise Refused(400, "invalid_request", fault[1], field=fault[0])
        secret = KEY_PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
        try:
            with router.operations.loading_keys:
                with transaction.atomic():
                    row = ApiKey.objects.create(
                        name=name,
                        prefix=secret[:SHOWN_CHARACTERS],
                        digest=digest(secret).hex(),
                        scopes=[scope.value for scope in Scope if scope.value in scopes],
                        max_concurrency=max_concurrency,
                        expires_at=expires_at,
                        created_by=actor,
                    )
                    granted = ",".join(row.scopes)
                    audit.record(
                        actor=actor, through=through, action="create_key", subject=name, result=granted
                    )
                router.ring.add(_in_ring(row))
        except django.db.IntegrityError:
            raise Refused(409, "name_taken", SENTENCES["name_taken"], field="name") from None
        except django.db.Error:
            raise Refused(503, "not_persisted", "The key could not be stored; there is none.") from None
        return row, secret


def revoke(router: "Router", key_id: int, *, actor: str, through: Through) -> ApiKey:
    """End a key: it fails from its next request on, and what it has running goes on. Its row.

    Revoking again changes nothing. Raises Refused: 404 ``unknown_key``, 503 when this process does not own
    the ledger, or ``not_persisted``: then the key is refused until this process ends.
    """
    with audit.telling_refusals("revoke_key", actor=actor, through=through):
        if not router.owns_ledger:
            raise not_ledger_owner()
        router.ring.revoke(key_id)
        try:
            with transaction.atomic():
                row = ApiKey.objects.select_for_update().filter(pk=key_id).first()
                if row is None:
                    raise Refused(404, "unknown_key", SENTENCES["unknown_key"])
                if row.revoked_at is None:
                    row.revoked_at = timezone.now()
                    row.save(update_fields=["revoked_at"])
                    audit.record(
                        actor=actor, through=through, action="revoke_key", subject=row.name, result="revoked"
                    )
        except django.db.Error:
            text = "The key is refused from now on, but that could not be stored."
            raise Refused(503, "not_persisted", text) from None
        return row


def refresh(router: "Router") -> None:
    """Make the stored keys the whole ring, beside the bootstrap token.

    Raises django.db.Error; the ring is then as it was.
    """
    with router.operations.loading_keys:
        router.set_keys([_in_ring(row) for row in ApiKey.objects.filter(revoked_at=None)])


def _in_ring(row: ApiKey) -> Key:
    return Key(
        key_id=row.pk,
        # A stored name may be older than the grammar; a colon is in no name, so nobody else has this one.
        name=row.name if is_key_name(row.name) else f"key:{row.pk}",
        digest=bytes.fromhex(row.digest),
        scopes=frozenset(scope for scope in Scope if scope.value in row.scopes),
        max_concurrency=row.max_concurrency,
        expires_at=row.expires_at.timestamp() if row.expires_at is not None else None,
    )


def write_back_last_used(router: "Router") -> None:
    """Store when keys were last used. For a background thread; raises django.db.Error."""
    used = router.ring.drain_last_used()
    if not used:
        return
    with transaction.atomic():
        for key_id, seconds in used.items():
            last_used = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
            ApiKey.objects.filter(pk=key_id).update(last_used_at=last_used)


def describe(row: ApiKey) -> dict[str, object]:
    """A key as REST shows it; times in ISO 8601."""
    return {
        "id": row.pk,
        "name": row.name,
        "prefix": row.prefix,
        "scopes": row.scopes,
        "max_concurrency": row.max_concurrency,
        "expires_at": _iso(row.expires_at),
        "created_at": _iso(row.created_at),
        "created_by": row.created_by,
        "revoked": row.revoked_at is not None,
        "revoked_at": _iso(row.revoked_at),
        "last_used_at": _iso(row.last_used_at),
    }


def _iso(moment: datetime.datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None
