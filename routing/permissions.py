"""Who may do what in the console: the rights of the groups Viewer and Operator.

A migration makes the groups. What they may see follows the models: after each migrate they are given the view
right of every model of ours, and Operator the two rights to act. Other rights, and other groups, are left
alone.
"""

from typing import Any, Final

from django.apps import AppConfig
from django.contrib.auth.models import Group, Permission
from django.db import DEFAULT_DB_ALIAS

VIEWER: Final = "Viewer"
OPERATOR: Final = "Operator"

OPERATE_TIER: Final = "admission.operate_tier"
"""To quiesce, drain and readmit."""

ACTIVATE_SNAPSHOT: Final = "routing.activate_snapshot"
"""To make a stored snapshot the active one."""

ROOMS: Final = frozenset({"admission", "routing", "telemetry"})
_ACTING: Final = frozenset(right.partition(".")[2] for right in (OPERATE_TIER, ACTIVATE_SNAPSHOT))


def grant(sender: AppConfig, using: str = DEFAULT_DB_ALIAS, **kwargs: Any) -> None:
    """Receiver of ``post_migrate``: give both groups what one room's models call for.

    Django's own receiver makes the permissions; it was connected first, so it has run.
    """
    if sender.label not in ROOMS:
        return
    rights = Permission.objects.using(using).filter(content_type__app_label=sender.label)
    viewing = rights.filter(codename__startswith="view_")
    for group in Group.objects.using(using).filter(name__in=(VIEWER, OPERATOR)):
        group.permissions.add(*viewing)
        if group.name == OPERATOR:
            group.permissions.add(*rights.filter(codename__in=_ACTING))
