"""Snapshots in the database: record what was captured, and move the active pointer.

Capture and validation come first and touch nothing; a refusal leaves no row behind.
"""

from django.db import transaction

from routing.models import ActiveSnapshot, RouterSnapshot
from routing.snapshot import ValidatedSnapshot, validate_snapshot


def store(snapshot: ValidatedSnapshot, *, source: RouterSnapshot.Source, actor: str) -> RouterSnapshot:
    """Keep a validated capture as a row."""
    return RouterSnapshot.objects.create(
        created_by=actor,
        source=source,
        config_bytes=snapshot.config_bytes,
        config_sha256=snapshot.config_sha256,
        topology_bytes=snapshot.topology_bytes,
        topology_sha256=snapshot.topology_sha256 or "",
        overlay_bytes=snapshot.overlay_bytes,
        tier_count=snapshot.tier_count,
        replica_tier_count=snapshot.replica_tier_count,
        replica_member_count=snapshot.replica_member_count,
    )


def captured(row: RouterSnapshot) -> tuple[bytes, bytes | None, bytes | None]:
    """The exact bytes of a row: configuration, topology, overlay."""
    return (
        bytes(row.config_bytes),
        bytes(row.topology_bytes) if row.topology_bytes is not None else None,
        bytes(row.overlay_bytes) if row.overlay_bytes is not None else None,
    )


def load(row: RouterSnapshot) -> ValidatedSnapshot:
    """Validate a row's exact bytes again. Raises SnapshotError when they no longer pass."""
    return validate_snapshot(*captured(row))


def active_row() -> RouterSnapshot | None:
    """The snapshot that the pointer names, or None in an empty router."""
    pointer = ActiveSnapshot.objects.select_related("snapshot").first()
    return pointer.snapshot if pointer is not None else None


def point_at(row: RouterSnapshot, *, actor: str) -> None:
    """Move the active pointer, in one transaction."""
    with transaction.atomic():
        ActiveSnapshot.objects.update_or_create(
            pk=ActiveSnapshot.SINGLETON, defaults={"snapshot": row, "activated_by": actor}
        )


def install_into_empty(
    snapshot: ValidatedSnapshot, *, source: RouterSnapshot.Source, actor: str
) -> RouterSnapshot | None:
    """Store ``snapshot`` and make it active, unless some snapshot is already: then None, nothing changed."""
    with transaction.atomic():
        if ActiveSnapshot.objects.exists():
            return None
        row = store(snapshot, source=source, actor=actor)
        point_at(row, actor=actor)
    return row
