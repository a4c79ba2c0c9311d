"""Changes to a data directory that no process is serving: made under its lock, or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from routing.snapshot import validate_snapshot

ACTOR: Final = "offline"
"""Who makes these changes, for the audit trail: whoever may write to the data directory."""


class LedgerOwned(Exception):
    """Another process owns the data directory; only it may change anything there."""


@contextmanager
def owning_data_directory() -> Iterator[None]:
    """Hold the ledger lock with the database ready. Raises LedgerOwned when another process has it."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "anvil_site.settings")
    django.setup()
    from django.conf import settings
    from django.core.management import call_command

    from anvil_site.ownership import LedgerLock

    lock = LedgerLock(settings.ANVIL_DATA)
    if not lock.try_acquire():
        raise LedgerOwned
    try:
        call_command("migrate", verbosity=0, interactive=False)
        yield
    finally:
        lock.release()


def install_snapshot(config: bytes, topology: bytes | None, overlay: bytes | None) -> dict[str, object]:
    """Validate, store and make active; what serves next starts with it.

    Nothing is served, so nothing has to be drained. Raises SnapshotError before anything is touched, or
    LedgerOwned. Installing what is active already changes nothing.
    """
    validate_snapshot(config, topology, overlay)
    with owning_data_directory():
        from django.db import transaction

        from routing import audit, publishing
        from routing.models import RouterSnapshot

        with transaction.atomic():
            row, _ = publishing.capture(
                config, topology, overlay, source=RouterSnapshot.Source.CLI, actor=ACTOR
            )
            if publishing.active_row() != row:
                publishing.point_at(row.pk, actor=ACTOR)
                audit.record(
                    actor=ACTOR,
                    through=audit.Through.OFFLINE,
                    action="activate",
                    subject=f"snapshot {row.pk}",
                    result="activated",
                )
        return {"activated": True, "snapshot_id": row.pk}


def ensure_superuser(name: str, password: str) -> bool:
    """Make a superuser of that name unless a user of it is there; whether it was made, with ``password``.

    Who is there keeps the password and the rights that people gave. Raises LedgerOwned.
    """
    with owning_data_directory():
        from django.contrib.auth.models import User

        if User.objects.filter(username=name).exists():
            return False
        User.objects.create_superuser(username=name, password=password)
        return True
