"""Changes to a data directory that no process is serving: made under its lock, or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


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

    Raises LedgerOwned, or SnapshotError before anything has changed. Installing the bytes that are active
    already adds no row.
    """
    with owning_data_directory():
        from routing import publishing
        from routing.models import RouterSnapshot
        from routing.snapshot import validate_snapshot

        snapshot = validate_snapshot(config, topology, overlay)
        row = publishing.active_row()
        if row is None or publishing.captured(row) != (config, topology, overlay):
            row = publishing.store(snapshot, source=RouterSnapshot.Source.CLI, actor="offline")
            publishing.point_at(row.pk, actor="offline")
        return {"activated": True, "snapshot_id": row.pk}


def set_superuser(name: str, password: str) -> None:
    """Make sure that a superuser of that name exists and has that password. Raises LedgerOwned."""
    with owning_data_directory():
        from django.contrib.auth import get_user_model

        users = get_user_model().objects
        user, _ = users.get_or_create(username=name)
        user.is_staff = user.is_superuser = user.is_active = True
        user.set_password(password)
        user.save()
