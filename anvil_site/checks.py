"""System checks: settings that start but should not serve. ``anvil manage check`` shows them.

    anvil.E001  authentication is off on an address that others can reach
    anvil.W001  a variable that the configuration names for a secret is not set
    anvil.W002  the console's cookies go over plain http on an address that others can reach
    anvil.W003  others may read or change the data directory
    anvil.W004  debugging is on, on an address that others can reach
    anvil.W005  any Host header is accepted

W001 reads ANVIL_CONFIG; with ``--database default`` also the active snapshot.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import django.db
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as Concern

from routing.access import is_loopback_bind
from routing.config import ConfigError, RouterConfig, load_config, parse_config, unset_auth_envs


@register(Tags.security)
def reachability(app_configs: object, **kwargs: Any) -> list[CheckMessage]:
    """What a loopback bind forgives."""
    found: list[CheckMessage] = []
    if not is_loopback_bind(settings.ANVIL_BIND):
        if not settings.ANVIL_AUTH:
            found.append(
                Error(
                    "ANVIL_AUTH=off on an address that others can reach.",
                    hint="Bind to a loopback address, or turn authentication on.",
                    id="anvil.E001",
                )
            )
        if not (settings.SESSION_COOKIE_SECURE and settings.CSRF_COOKIE_SECURE):
            found.append(
                Concern(
                    "The console's cookies are sent over plain http.",
                    hint="Unset ANVIL_SECURE_COOKIES, and put a proxy with TLS in front.",
                    id="anvil.W002",
                )
            )
        if settings.DEBUG:
            found.append(
                Concern(
                    "ANVIL_DEBUG is on: pages of errors show settings and source.",
                    hint="Unset ANVIL_DEBUG.",
                    id="anvil.W004",
                )
            )
    if "*" in settings.ALLOWED_HOSTS:
        found.append(
            Concern(
                "ANVIL_ALLOWED_HOSTS accepts any Host header.",
                hint="Name the hosts under which the console is reached.",
                id="anvil.W005",
            )
        )
    return found


@register(Tags.security)
def data_directory(app_configs: object, **kwargs: Any) -> list[CheckMessage]:
    """Nobody but its owner has business in the data directory."""
    open_to_others = [
        "." if path == settings.ANVIL_DATA else path.name for path in _exposed(settings.ANVIL_DATA)
    ]
    if not open_to_others:
        return []
    return [
        Concern(
            f"Others can get at the data directory: {', '.join(sorted(open_to_others)[:5])}.",
            hint="chmod -R go= on ANVIL_DATA.",
            id="anvil.W003",
        )
    ]


def _exposed(directory: Path) -> Iterator[Path]:
    """What others can get at: nothing, where they can't enter the directory at all."""
    try:
        if not stat.S_IMODE(directory.stat().st_mode) & 0o077:
            return
        yield directory
        for path in directory.iterdir():
            if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077:
                yield path
    except OSError:
        # Not there yet, or not ours to look into: whoever starts hears of that in its own words.
        return


@register()
def secrets_of_the_first_start(app_configs: object, **kwargs: Any) -> list[CheckMessage]:
    """The variables that ANVIL_CONFIG names."""
    if settings.ANVIL_CONFIG is None:
        return []
    try:
        return list(_unset(load_config(settings.ANVIL_CONFIG)))
    except (ConfigError, OSError):
        # `anvil router check` tells what is wrong with a document.
        return []


@register(Tags.database)
def secrets_of_the_active_snapshot(
    app_configs: object, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """The variables that the active configuration names."""
    if not databases or "default" not in databases:
        return []
    from routing import publishing

    try:
        row = publishing.active_row()
        return [] if row is None else list(_unset(parse_config(publishing.captured(row)[0])))
    except (ConfigError, django.db.Error):
        return []


def _unset(config: RouterConfig) -> Iterator[CheckMessage]:
    for place in unset_auth_envs(config, os.environ):
        yield Concern(
            f"The variable that {place} names is not set: no secret is sent or taken there.",
            hint="Set it in the service's environment.",
            id="anvil.W001",
        )
