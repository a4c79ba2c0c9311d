"""Snapshots in the database: record what was captured, compare, and move the active pointer.

Capture and validation come first and touch nothing; a refusal leaves no row behind. There is one way in, for
files, uploads and publications alike, and it takes bytes: no path is opened here and nothing is written anew.
"""

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.db import transaction

from routing import audit
from routing.activation_plan import ActivationPlan, plan_activation
from routing.models import ActiveSnapshot, RouterSnapshot
from routing.rendering import config_document, render, topology_document
from routing.snapshot import ValidatedSnapshot, validate_snapshot

if TYPE_CHECKING:
    from routing.router import Router

DOCUMENT_COLUMNS: Final = ("config_bytes", "topology_bytes", "overlay_bytes")
"""Where a row has what was captured: megabytes, which a list of rows leaves out."""


def capture(
    config: bytes,
    topology: bytes | None,
    overlay: bytes | None,
    *,
    source: RouterSnapshot.Source,
    actor: str,
    through: audit.Through | None = None,
) -> tuple[RouterSnapshot, bool]:
    """Validate these exact bytes and keep them; the row, and whether it is a new one.

    Bytes that were captured before are not kept twice. A new row leaves an audit entry in the same
    transaction where ``through`` says by what way somebody asked for it; without, the row is a part of a
    change that leaves its own. Raises SnapshotError, and nothing is stored.
    """
    snapshot = validate_snapshot(config, topology, overlay)
    with transaction.atomic():
        known = RouterSnapshot.objects.filter(
            config_sha256=snapshot.config_sha256, topology_sha256=snapshot.topology_sha256 or ""
        )
        for row in known:
            if captured(row) == (config, topology, overlay):
                return row, False
        row = store(snapshot, source=source, actor=actor)
        if through is not None:
            audit.record(
                actor=actor,
                through=through,
                action="publish" if source == RouterSnapshot.Source.PUBLICATION else "capture",
                subject=f"snapshot {row.pk}",
                result="stored",
            )
        return row, True


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


def active_id(router: "Router") -> int | None:
    """The number of the snapshot that is served here, else of the one that the pointer names."""
    if router.active is not None:
        return router.active.snapshot_id
    return ActiveSnapshot.objects.values_list("snapshot_id", flat=True).first()


def point_at(snapshot_id: int | None, *, actor: str) -> None:
    """Move the active pointer, in one transaction; None takes it away."""
    with transaction.atomic():
        if snapshot_id is None:
            ActiveSnapshot.objects.all().delete()
            return
        ActiveSnapshot.objects.update_or_create(
            pk=ActiveSnapshot.SINGLETON, defaults={"snapshot_id": snapshot_id, "activated_by": actor}
        )


def install_into_empty(
    snapshot: ValidatedSnapshot, *, source: RouterSnapshot.Source, actor: str
) -> RouterSnapshot | None:
    """At a first start: store ``snapshot`` and make it active, unless some is already (then None)."""
    with transaction.atomic():
        if ActiveSnapshot.objects.exists():
            return None
        row = store(snapshot, source=source, actor=actor)
        point_at(row.pk, actor=actor)
        audit.record(
            actor=actor,
            through=audit.Through.START,
            action="activate",
            subject=f"snapshot {row.pk}",
            result="activated",
        )
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What a candidate would change.

    ``config_lines`` and ``topology_lines`` are unified diffs of what both sides mean: each is written in the
    one layout, so that comments, order of keys and spelled-out defaults don't show. Empty: no difference.
    """

    config_lines: tuple[str, ...]
    topology_lines: tuple[str, ...]
    plan: ActivationPlan

    @property
    def is_empty(self) -> bool:
        return not (self.config_lines or self.topology_lines)


def diff(active: ValidatedSnapshot | None, candidate: ValidatedSnapshot) -> Difference:
    """How ``candidate`` differs from ``active`` (None: nothing is), and what activating it needs."""
    before, after = _written(active), _written(candidate)
    config, topology = (
        tuple(difflib.unified_diff(old, new, "active", "candidate", lineterm=""))
        for old, new in zip(before, after, strict=True)
    )
    old_config = None if active is None else active.config
    return Difference(
        config_lines=config,
        topology_lines=topology,
        plan=plan_activation(old_config, candidate.config),
    )


def _written(snapshot: ValidatedSnapshot | None) -> tuple[list[str], list[str]]:
    if snapshot is None:
        return [], []
    topology = b"" if snapshot.topology is None else render(topology_document(snapshot.topology))
    config = render(config_document(snapshot.config))
    return config.decode().splitlines(), topology.decode().splitlines()
