"""What a command comes to, and the one place that prints it.

A handler returns an :class:`Outcome`. :func:`emit` turns it into one JSON envelope on stdout, or into a few
bounded lines derived from the same value: on stdout when it went well, on stderr when it did not. Errors come
from the closed table below, so no operand, path, address, secret or exception text can get into one.
"""

import json
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TextIO, TypeAlias

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

DONE: Final = 0
FAILED: Final = 1
BAD_INPUT: Final = 2

LINE_LIMIT: Final = 400
"""Characters of one human line; the rest is cut."""

ONLINE: Final[Mapping[str, Json]] = {"via": "router"}
"""The envelope's context when the answer came from a running router; where it runs is never said."""

MESSAGES: Final[Mapping[str, str]] = {
    # The command line itself.
    "usage_command_missing": "a command is missing; --help lists them",
    "usage_command_unknown": "there is no such command; --help lists them",
    "usage_invalid": "an argument is unknown or lacks its value; --help shows what the command takes",
    "usage_option_missing": "a required option is missing",
    "usage_option_repeated": "an option was given twice",
    "usage_option_invalid": "an option's value is not of its form",
    "usage_options_conflict": "two options exclude each other",
    "environment_invalid": "ANVIL_URL is not an http(s) base URL, or ANVIL_TOKEN is not a token",
    "interrupted": "interrupted; what the router had begun goes on there",
    "internal_error": "the command failed in a way it should not; ANVIL_TRACEBACK=1 shows where",
    # Configuration documents. The first nine are the snapshot contract's closed vocabulary.
    "config_too_large": "a document is larger than 1 MiB",
    "router_config_invalid": "the router configuration can't be read or breaks a rule",
    "topology_invalid": "the topology or its overlay can't be read or breaks a rule",
    "replica_resource_missing": "a replica member's resource is not in the topology",
    "replica_resource_reused": "two replica members name the same resource",
    "replica_host_mismatch": "a replica member's resource belongs to another host",
    "replica_endpoint_missing": "a replica member's resource has no endpoint",
    "replica_endpoint_mismatch": "a replica member's URL is not its resource's endpoint",
    "replica_host_split": "the members of one tier are not on one host",
    "document_unreadable": "the document can't be read, is larger than 1 MiB or is not a JSON object",
    # Between here and the router.
    "router_unreachable": "no router answers at ANVIL_URL",
    "answer_lost": "the router's answer did not arrive; what it was asked may still happen",
    "malformed_answer": "what answered at ANVIL_URL is not a router's answer",
    "unauthorised": "the router wants a valid key in ANVIL_TOKEN",
    "forbidden": "the key in ANVIL_TOKEN lacks the scope",
    "not_found": "the router knows no such thing",
    "conflict": "the state of the scope does not allow it",
    "refused": "the router refused the request",
    "router_failed": "the router failed",
    "router_unavailable": "the router does not own the ledger, is draining or is busy",
    # Refusals that the router names.
    "not_configured": "the router has no configuration yet",
    "unknown_tier": "the router has no such tier",
    "unknown_member": "the tier has no such member",
    "direct_tier": "a direct tier has no members",
    "not_drained": "what changes still admits or still runs; drain it first, or give --drain-timeout",
    "activation_in_progress": "another snapshot is being activated; try again when that is over",
    "activation_not_persisted": "the snapshot could not be made the active one; nothing has changed",
    "verification_failed": "what changed could not be verified; the previous snapshot is active again",
    "restore_not_persisted": "the new snapshot is active; what could not be verified in it stays quiesced",
    "drain_timed_out": "leases were still running when the time was up; the scope stays quiesced",
    "drain_reopened": "the scope was readmitted while it was being drained",
    "intent_not_persisted": "the scope is quiesced, but that could not be stored",
    "identity_not_configured": "the tier has no identity to verify; --accept-unverified readmits it anyway",
    "promotion_unverifiable": "the tier has no identity by which its new place could be verified",
    "promotion_unverified": "the tier stays quiesced: it could not be verified",
    "replica_lifecycle_unsupported": "replica_lifecycle_unsupported: manage a replica tier member by member",
    "replica_lifecycle_configuration_unavailable": (
        "replica_lifecycle_configuration_unavailable: no such tier in the configurations at hand"
    ),
    "unknown_resource": "the topology has no such resource",
    "resource_without_endpoint": "the resource has no endpoint",
    "resource_in_use": "the resource is a member of a replica tier",
    "resource_serves_already": "the tier is served by that resource already",
    "config_not_editable": "the active configuration can't be edited in place; install one instead",
    "promotion_in_progress": "a promotion is at work",
    "promotion_unfinished": "a promotion was stopped half-way; --resume it or --rollback first",
    "no_stopped_promotion": "there is no promotion that was stopped",
    "promotion_superseded": "another configuration has been activated since; --rollback closes the record",
    "promotion_not_persisted": "the promotion could not be recorded; nothing has changed",
    "promotion_not_recorded": "it is done, but could not be recorded; --resume tries again",
    # Work on the data directory.
    "data_directory_missing": "no router answers and no data directory is named: set ANVIL_URL or ANVIL_DATA",
    "ledger_owned": "another process owns the data directory",
    "already_initialised": "the data directory is in use already; nothing was changed",
    "admin_missing": "set ANVIL_ADMIN_USER and ANVIL_ADMIN_PASSWORD, or run it in a terminal",
    "admin_refused": "the first user's name or password does not do: 8 characters or more, not a common one",
    "offline_failed": "the data directory could not be changed; ANVIL_TRACEBACK=1 shows why",
    "init_failed": "the data directory could not be set up and is as before; ANVIL_TRACEBACK=1 shows why",
    "server_missing": "the server could not be started",
    "mcp_missing": "the MCP SDK is not installed: it comes with the extra anvil-router[mcp]",
    "mcp_port_taken": "the port is not free",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One error: a code of :data:`MESSAGES` and, for the command line, the declared option it is about."""

    code: str
    option: str | None = None

    @property
    def message(self) -> str:
        text = MESSAGES[self.code]
        return text if self.option is None else f"{text}: --{self.option}"

    def as_json(self) -> Json:
        return {"code": self.code, "message": self.message}


class RouterFault(Exception):
    """The router could not be asked, or refused. ``body`` is its parsed answer, if there was one."""

    def __init__(self, code: str, body: "Mapping[str, Json] | None" = None) -> None:
        super().__init__(code)
        self.code = code
        self.body = body

    @property
    def reached(self) -> bool:
        """Whether something answered."""
        return self.code not in ("environment_invalid", "router_unreachable", "answer_lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a command.

    ``data`` is the envelope's; ``lines`` are what people read, derived from it; ``document`` is text that is
    the answer itself (an exported file) and is printed whole in place of lines. ``online`` tells that a
    router answered.
    """

    data: Json = None
    lines: tuple[str, ...] = ()
    document: str | None = None
    errors: tuple[Fault, ...] = ()
    warnings: tuple[str, ...] = ()
    exit_code: Literal[0, 1, 2] = DONE
    online: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_code == DONE


def tell_traceback() -> None:
    """Print the exception at hand, which otherwise stays unseen, if its owner asked for it."""
    if os.environ.get("ANVIL_TRACEBACK") == "1":
        traceback.print_exc()


def failed(code: str, *, data: Json = None, lines: tuple[str, ...] = (), online: bool = False) -> Outcome:
    """A command that the router, or the state of things, refused (exit 1)."""
    return Outcome(data=data, lines=lines, errors=(Fault(code),), exit_code=FAILED, online=online)


def refused(
    code: str, *, option: str | None = None, data: Json = None, lines: tuple[str, ...] = ()
) -> Outcome:
    """A command whose input was bad (exit 2)."""
    return Outcome(data=data, lines=lines, errors=(Fault(code, option),), exit_code=BAD_INPUT)


def refusal_of(fault: RouterFault, *, data: Json = None, lines: tuple[str, ...] = ()) -> Outcome:
    """What a command that the router did not serve comes to; only a bad environment is bad input."""
    return Outcome(
        data=data,
        lines=lines,
        errors=(Fault(fault.code),),
        exit_code=BAD_INPUT if fault.code == "environment_invalid" else FAILED,
        online=fault.reached,
    )


def envelope(command: str, outcome: Outcome) -> dict[str, Json]:
    """The one shape of JSON output. ``command`` is a declared label, never what was typed."""
    return {
        "command": command,
        "ok": outcome.ok,
        "context": ONLINE if outcome.online else None,
        "data": outcome.data,
        "warnings": list(outcome.warnings),
        "errors": [fault.as_json() for fault in outcome.errors],
    }


def emit(command: str, outcome: Outcome, *, as_json: bool, out: TextIO, err: TextIO) -> None:
    """Print ``outcome``, once."""
    if as_json:
        # ASCII only, so that no locale can refuse it.
        out.write(json.dumps(envelope(command, outcome), allow_nan=False) + "\n")
        return
    for warning in outcome.warnings:
        err.write(f"warning: {plain(warning)}\n")
    if outcome.document is not None:
        out.write(outcome.document)
        return
    stream = out if outcome.ok else err
    for line in outcome.lines:
        stream.write(plain(line) + "\n")
    if not outcome.lines:
        for fault in outcome.errors:
            stream.write(f"{command}: {fault.message}\n")


def plain(line: str) -> str:
    """``line`` without control characters (a terminal obeys them) and not longer than the limit."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in line[:LINE_LIMIT])
