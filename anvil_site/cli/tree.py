"""Every command of ``anvil``, declared once."""

from typing import Final

from . import (
    check,
    install,
    intent,
    keys,
    mcp_server,
    promote,
    qualify,
    readers,
    site,
    spec,
    topology,
    transitions,
    watch,
)
from .spec import Command, Leaf, Option, Passthrough

_DOCUMENTS: Final = (
    Option(name="config", form=spec.PATH, required=True, help="the router configuration (TOML)"),
    Option(name="topology", form=spec.PATH, help="the topology (TOML); replica tiers need one"),
    Option(name="topology-overlay", form=spec.PATH, help="a private document that replaces or adds by id"),
)
_TIER: Final = Option(name="tier", form=spec.ID, required=True, help="the tier")
_MEMBER: Final = Option(name="member", form=spec.ID, help="one member of the tier instead of the whole tier")
_TRANSITION: Final = (
    _TIER,
    _MEMBER,
    Option(name="reason", form=spec.REASON, help="why, as a code; a quiesce records it"),
    Option(name="timeout", form=spec.SECONDS, help="how long a drain waits"),
    Option(name="accept-unverified", help="readmit a tier that has no identity to verify"),
)
_LIMIT: Final = Option(name="limit", form=spec.LIMIT, help="at most so many of the newest")

LEAVES: Final[tuple[Leaf, ...]] = (
    Command(
        words=("init",),
        summary="Set up an empty data directory: database, first user, example files.",
        reach="offline",
        run=site.init,
    ),
    Command(words=("serve",), summary="Run the router under gunicorn.", reach="process", run=site.serve),
    Passthrough(
        words=("manage",),
        summary="Django's management commands; what follows is theirs.",
        reach="process",
        run=site.manage,
    ),
    Command(
        words=("topology", "validate-router-config"),
        summary="Check a configuration against its topology, offline.",
        reach="offline",
        run=topology.validate_router_config,
        options=_DOCUMENTS,
    ),
    Command(
        words=("router", "check"),
        summary="Every fault of a configuration with its place and value, offline, for the file's owner.",
        reach="offline",
        run=check.check,
        options=_DOCUMENTS,
    ),
    Command(
        words=("router", "install-config"),
        summary="Validate a configuration and make exactly those bytes the active snapshot.",
        reach="router-or-offline",
        run=install.install_config,
        options=(
            *_DOCUMENTS,
            Option(
                name="drain-timeout",
                form=spec.SECONDS,
                help="quiesce and drain what the change needs drained, activate, verify and readmit it",
            ),
        ),
        mutates=True,
    ),
    Command(
        words=("router", "transition-status"),
        summary="Admission and readiness of every tier, one tier or one member.",
        reach="router",
        run=transitions.status,
        options=(Option(name="tier", form=spec.ID, help="one tier"), _MEMBER),
    ),
    Command(
        words=("router", "quiesce"),
        summary="Stop new requests to a tier or a member; running ones go on.",
        reach="router",
        run=transitions.quiesce,
        options=_TRANSITION,
        mutates=True,
    ),
    Command(
        words=("router", "drain"),
        summary="Wait until a quiesced tier or member has no running request; nothing is cancelled.",
        reach="router",
        run=transitions.drain,
        options=_TRANSITION,
        mutates=True,
    ),
    Command(
        words=("router", "readmit"),
        summary="Verify a quiesced tier or member and let requests in again.",
        reach="router",
        run=transitions.readmit,
        options=_TRANSITION,
        mutates=True,
    ),
    Command(
        words=("router", "status"),
        summary="Version, uptime, active snapshot, ownership of the ledger.",
        reach="router",
        run=readers.status,
    ),
    Command(
        words=("router", "capacity"),
        summary="Capacity, readiness and load of the tiers.",
        reach="router",
        run=readers.capacity,
        options=(Option(name="model", form=spec.ALIAS, help="the tier of one alias"),),
    ),
    Command(
        words=("router", "decisions"),
        summary="The newest routing decisions.",
        reach="router",
        run=readers.decisions,
        options=(_LIMIT,),
    ),
    Command(
        words=("router", "explain"),
        summary="Why an alias would be served or refused now.",
        reach="router",
        run=readers.explain,
        options=(Option(name="model", form=spec.ALIAS, required=True, help="the alias"),),
    ),
    Command(
        words=("router", "watch"),
        summary="A live table of tiers and members; with --json one reading.",
        reach="router",
        run=watch.watch,
    ),
    Command(
        words=("promote",),
        summary="Move a direct tier to another resource of the topology, verify it there and readmit it.",
        reach="router",
        run=promote.promote,
        options=(
            Option(name="tier", form=spec.ID, help="the tier; a direct one"),
            Option(name="resource", form=spec.ID, help="the resource to serve it from"),
            Option(name="drain-timeout", form=spec.SECONDS, help="how long its running requests may take"),
            Option(name="resume", help="go on with the promotion that was stopped"),
            Option(name="rollback", help="take the promotion that was stopped back"),
        ),
        mutates=True,
    ),
    Command(
        words=("keys", "create"),
        summary="Make an API key and print it, once.",
        reach="router",
        run=keys.create,
        options=(
            Option(name="name", form=spec.NAME, required=True, help="whose key it is"),
            Option(name="scopes", form=spec.KEY_SCOPES, required=True, help="what it may be used for"),
            Option(name="max-concurrency", form=spec.CEILING, help="its requests at a time"),
            Option(name="expires", form=spec.INSTANT, help="when it ends"),
        ),
        mutates=True,
    ),
    Command(
        words=("keys", "list"),
        summary="The API keys, without their secrets.",
        reach="router",
        run=keys.listing,
    ),
    Command(
        words=("keys", "revoke"),
        summary="End an API key at once.",
        reach="router",
        run=keys.revoke,
        options=(Option(name="id", form=spec.NUMBER, required=True, help="the key"),),
        mutates=True,
    ),
    Command(
        words=("admission", "export"),
        summary="Print what is quiesced as an intent document.",
        reach="router",
        run=intent.export,
    ),
    Command(
        words=("admission", "import"),
        summary="Quiesce what an intent document says.",
        reach="router",
        run=intent.load,
        options=(Option(name="file", form=spec.PATH, required=True, help="the intent document (JSON)"),),
        mutates=True,
    ),
    Command(
        words=("decisions", "export"),
        summary="Print the newest decisions, one JSON object a line, oldest first.",
        reach="router",
        run=readers.export,
        options=(
            _LIMIT,
            Option(name="jsonl", help="JSON lines, which is the default", excludes="json"),
        ),
    ),
    Command(
        words=("mcp",),
        summary="Serve transitions and readings as tools of the Model Context Protocol, over stdio.",
        reach="router",
        run=mcp_server.serve,
        options=(Option(name="port", form=spec.PORT, help="serve over HTTP on this port of 127.0.0.1"),),
    ),
    Command(
        words=("qualify", "plan"),
        summary="Print the qualification procedure, which people carry out.",
        reach="offline",
        run=qualify.plan,
    ),
)
