"""The replica lifecycle guard: shortcuts that assume one backing endpoint refuse replica tiers.

Whoever has such a shortcut asks before it touches anything (a lock, a journal, state, a transition, a file,
an event), and again at each of its ways back in: resume, rollback, recovery. It asks about exactly the tiers
that the shortcut affects; other tiers may be what they are.

    ReplicaLifecycleError(ValueError)                 ``code`` is a fixed word and the whole text
        ReplicaLifecycleUnsupported                   an affected tier is a replica tier
        ReplicaLifecycleConfigurationUnavailable      what the tiers are can't be known

Source: replica contract T012.
"""

from collections.abc import Iterable
from typing import ClassVar

from routing.config import RouterConfig


class ReplicaLifecycleError(ValueError):
    """A shortcut was refused. The text is the code: it carries no id, path or parser detail."""

    code: ClassVar[str]

    def __init__(self) -> None:
        super().__init__(self.code)


class ReplicaLifecycleUnsupported(ReplicaLifecycleError):
    """An affected tier is a replica tier: its members are managed one by one."""

    code = "replica_lifecycle_unsupported"


class ReplicaLifecycleConfigurationUnavailable(ReplicaLifecycleError):
    """There is no configuration, it can't be loaded, or it has no such tier: never read as "direct"."""

    code = "replica_lifecycle_configuration_unavailable"


def refuse_replica_tiers(config: RouterConfig | None, affected: Iterable[str]) -> None:
    """Return when every tier of ``affected`` is a direct tier of ``config``.

    ``config`` is None where it is missing or can't be loaded, which is refused when any tier is affected at
    all. Raises ReplicaLifecycleError; a tier that is not there is told before one that is a replica tier.
    """
    wanted = frozenset(affected)
    if not wanted:
        return
    found = [] if config is None else [tier for tier in config.tiers if tier.id in wanted]
    if len(found) != len(wanted):
        raise ReplicaLifecycleConfigurationUnavailable
    if any(tier.is_replica for tier in found):
        raise ReplicaLifecycleUnsupported
