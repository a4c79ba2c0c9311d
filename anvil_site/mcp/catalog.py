"""The tools as clients are shown them: names, descriptions and closed input schemas, in this order.

Clients and people rely on it, so a test pins its digest and names each change that was ever intended.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from anvil_site.cli.outcome import Json

_ID: Final[Mapping[str, Json]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 64,
    "pattern": "^[A-Za-z][A-Za-z0-9_-]{0,63}$",
}
_ALIAS: Final[Mapping[str, Json]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 128,
    "pattern": "^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$",
}


def _closed(properties: Mapping[str, Json], *required: str) -> dict[str, Json]:
    """An object of these properties and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
        "maxProperties": len(properties),
    }


_READS: Final[Mapping[str, Json]] = {"readOnlyHint": True, "openWorldHint": False}

TOOLS: Final[tuple[Mapping[str, Any], ...]] = (
    {
        "name": "router_transition",
        "description": (
            "Read or change which requests a tier, or one declared member of a replica tier, takes. status"
            " reads; quiesce stops new requests; drain waits until a quiesced scope runs none and cancels"
            " nothing; readmit verifies the scope and opens it again. Without confirm, or with dry_run, a"
            " change is only checked and nothing happens."
        ),
        "inputSchema": _closed(
            {
                "action": {"type": "string", "enum": ["status", "quiesce", "drain", "readmit"]},
                "tier": {**_ID, "description": "The tier; may be missing for status only."},
                "member": {**_ID, "description": "One member of the tier instead of the whole tier."},
                "reason": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 128,
                    "pattern": "^[A-Za-z0-9._-]{1,128}$",
                    "description": "Why, as a code; a quiesce records it.",
                },
                "timeout": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": 3600,
                    "description": "Seconds that a drain waits.",
                },
                "confirm": {"type": "boolean", "description": "Do it."},
                "dry_run": {"type": "boolean", "description": "Only check it, whatever confirm says."},
            },
            "action",
        ),
        "annotations": {
            "readOnlyHint": False,
            "destructiveHint": True,
            "idempotentHint": True,
            "openWorldHint": False,
        },
    },
    {
        "name": "router_status",
        "description": "Version, uptime, active snapshot and ownership of the ledger.",
        "inputSchema": _closed({}),
        "annotations": _READS,
    },
    {
        "name": "router_capacity",
        "description": "Capacity, readiness and load of every tier, or of the tier of one alias.",
        "inputSchema": _closed({"model": {**_ALIAS, "description": "A configured model alias."}}),
        "annotations": _READS,
    },
    {
        "name": "router_decisions",
        "description": "The newest routing decisions: tier, member, outcome, tokens; no prompts, no answers.",
        "inputSchema": _closed(
            {"limit": {"type": "integer", "minimum": 1, "maximum": 500, "description": "At most so many."}}
        ),
        "annotations": _READS,
    },
    {
        "name": "router_explain",
        "description": "Why a request for an alias would be served or refused now.",
        "inputSchema": _closed({"model": {**_ALIAS, "description": "A configured model alias."}}, "model"),
        "annotations": _READS,
    },
)
"""Everything that is shown, as JSON."""


def digest(tools: object = TOOLS) -> str:
    """SHA-256, in lower-case hex, of the catalog as canonical JSON; the order of the tools counts."""
    canonical = json.dumps(tools, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
