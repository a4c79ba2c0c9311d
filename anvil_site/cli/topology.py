"""``anvil topology validate-router-config``: the offline check of a configuration against its topology.

Nothing is resolved, contacted or changed. The result is closed: nine keys, the snapshot contract's fixed
codes, and nothing of what was read but counts and a digest.
"""

from collections.abc import Mapping

from routing.snapshot import SnapshotError, ValidatedSnapshot, validate_files, validation_result

from .outcome import Json, Outcome, refused
from .spec import Arguments


def validate(arguments: Arguments) -> ValidatedSnapshot | SnapshotError:
    """Capture what ``--config``, ``--topology`` and ``--topology-overlay`` name, once, and validate it."""
    try:
        return validate_files(
            arguments.required_path("config"), arguments.path("topology"), arguments.path("topology-overlay")
        )
    except SnapshotError as error:
        return error


def line(result: Mapping[str, Json]) -> str:
    """The one line that people read, from the closed result alone."""
    if result["valid"] is True:
        return (
            f"valid: tiers {result['tier_count']}, replica tiers {result['replica_tier_count']}, "
            f"replica members {result['replica_member_count']}; sha256 {result['config_sha256']}"
        )
    return f"refused: {result['error_code']}"


def validate_router_config(arguments: Arguments) -> Outcome:
    outcome = validate(arguments)
    result = validation_result(outcome)
    if isinstance(outcome, SnapshotError):
        return refused(outcome.code, data=result, lines=(line(result),))
    return Outcome(data=result, lines=(line(result),))
