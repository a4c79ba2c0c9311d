"""What a command comes to, and the one place that prints it.

A handler returns an :class:`Outcome`. :func:`emit` turns it into one JSON envelope on stdout, or into a few
bounded lines derived from the same value: on stdout when it went well, on stderr when it did not. Errors come
from the closed table below, so no operand, path, address, secret or exception text can get into one.
"""

import json
import os
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TextIO, TypeAlias

from routing.refusals import SENTENCES
from routing.snapshot import CODE_TEXTS

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

DONE: Final = 0
FAILED: Final = 1
BAD_INPUT: Final = 2

LINE_LIMIT: Final = 400
"""Characters of one human line; the rest is cut."""

ONLINE: Final[Mapping[str, Json]] = {"via": "router"}
"""The envelope's context when the answer came from a running router; where it runs is never said."""


def clause(sentence: str) -> str:
    """A service's sentence as what follows a command's name and a colon."""
    parts = re.split(r"\. (?=[A-Z])", sentence.removesuffix("."))
    return "; ".join(f"{part[:1].lower()}{part[1:]}" for part in parts)


MESSAGES: Final[Mapping[str, str]] = {
    # The command line itself.
    "usage_command_missing": "a command is missing",
    "usage_command_unknown": "there is no such command",
    "usage_invalid": "an argument is unknown or lacks its value",
    "usage_option_missing": "a required option is missing",
    "usage_option_repeated": "an option was given twice",
    "usage_option_invalid": "an option's value is not of its form",
    "usage_options_conflict": "two options exclude each other",
    "environment_invalid": "ANVIL_URL is not an http(s) base URL, or ANVIL_TOKEN is not a token",
    "interrupted": "interrupted; what the router had begun goes on there",
    "internal_error": "the command failed in a way it should not; ANVIL_TRACEBACK=1 shows where",
    # Configuration documents. The first nine are the snapshot contract's closed vocabulary.
    **{code: clause(text) for code, text in CODE_TEXTS.items()},
    # Here the file may not even be there.
    "router_config_invalid": "the router configuration can't be read or breaks a rule",
    "topology_invalid": "the topology or its overlay can't be read or breaks a rule",
    "document_unreadable": "the document can't be read",
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
    **{code: clause(text) for code, text in SENTENCES.items()},
    "invalid_request": "the router does not take a value of the request",
    "model_not_found": "the router has no such alias",
    "no_such_document": "the snapshot has no such document",
    "drain_timed_out": "leases were still running when the time was up; the scope stays quiesced",
    "drain_reopened": "the scope was readmitted while it was being drained",
    "replica_lifecycle_unsupported": "a replica tier is managed member by member",
    "replica_lifecycle_configuration_unavailable": "no configuration at hand has such a tier",
    # Work on the data directory.
    "data_directory_missing": "no router answers and no data directory is named",
    "ledger_owned": "another process owns the data directory",
    "already_initialised": "the data directory is in use already; nothing was changed",
    "admin_missing": "the first user has no name or no password",
    "admin_mismatch": "the two passwords are not the same; nothing was set up",
    "admin_refused": "the first user's name or password does not do: 8 characters or more, not a common one",
    "offline_failed": "the data directory could not be changed; ANVIL_TRACEBACK=1 shows why",
    "init_failed": "the data directory could not be set up and is as before; ANVIL_TRACEBACK=1 shows why",
    "server_missing": "the server could not be started",
    "mcp_missing": "the MCP SDK is not installed: it comes with the extra anvil-router[mcp]",
    "mcp_port_taken": "the port is not free",
}
"""What is wrong, by its code; refusals of the router in the words of its own services."""

_CHECK: Final = "anvil router check, with the same options, shows each fault with its place and value"
_LIST_SCOPES: Final = "anvil router transition-status lists what there is"
_RESUME: Final = "anvil promote --resume goes on with it, anvil promote --rollback takes it back"

HINTS: Final[Mapping[str, str]] = {
    "usage_command_missing": "anvil --help lists all",
    "usage_command_unknown": "anvil --help lists all",
    "usage_invalid": "the command with --help shows what it takes",
    **dict.fromkeys(CODE_TEXTS, _CHECK),
    "router_unreachable": "start it (anvil serve), or say where it is (http://127.0.0.1:8000 when unset)",
    "answer_lost": "look before doing it again: anvil router status, anvil router transition-status",
    "unauthorised": "set it to a key that is not revoked or expired, or to the router's own token",
    "conflict": "anvil router transition-status shows it",
    "refused": "its log has a line with the reason",
    "router_failed": "its log shows why",
    "router_unavailable": "try again in a moment",
    "not_configured": "install one: anvil router install-config",
    "not_persisted": "see whether the router's database can be written to",
    "replica_lifecycle_unsupported": "anvil router quiesce, drain and readmit take --member",
    "replica_lifecycle_configuration_unavailable": _LIST_SCOPES,
    "unknown_tier": _LIST_SCOPES,
    "unknown_member": _LIST_SCOPES,
    "direct_tier": "leave --member out",
    "drain_in_progress": "it goes on by itself; anvil router transition-status shows when it is over",
    "readmit_refused": "run it again when that is mended",
    "identity_not_configured": "--accept-unverified readmits it anyway",
    "intent_not_persisted": (
        "a restart may not keep it: see whether the database can be written to, then do it again"
    ),
    "document_malformed": "anvil admission export prints one that is",
    "name_taken": "take another; a revoked key keeps its name (anvil keys list)",
    "unknown_key": "anvil keys list shows them",
    "unknown_snapshot": "anvil snapshots list shows them",
    "no_such_document": "anvil snapshots show lists those that it has",
    "model_not_found": "anvil router capacity lists the tiers, GET /v1/models the aliases",
    "activation_in_progress": "try again when that is over",
    "activation_not_persisted": "see whether the router's database can be written to",
    "not_drained": "drain it first (anvil router quiesce, then drain), or give --drain-timeout",
    "verification_failed": "see why: anvil router transition-status",
    "restore_not_persisted": "see why: anvil router transition-status",
    "drain_timed_out": "nothing was cancelled; drain it again, with a longer --timeout if need be",
    "drain_reopened": "anvil router transition-status shows its state",
    "promotion_unverifiable": "configure model_identity for it, or install a configuration instead",
    "resource_in_use": "take another resource",
    "config_not_editable": "install one instead: anvil router install-config",
    "promotion_unfinished": _RESUME,
    "promotion_superseded": "anvil promote --rollback closes the record",
    "promotion_unverified": _RESUME,
    "promotion_not_recorded": _RESUME,
    "data_directory_missing": "set ANVIL_URL or ANVIL_DATA",
    "ledger_owned": "set ANVIL_URL and ANVIL_TOKEN to ask that one, or stop it first",
    "already_initialised": "name another in ANVIL_DATA, or start this one: anvil serve",
    "admin_missing": "set ANVIL_ADMIN_USER and ANVIL_ADMIN_PASSWORD, or run it in a terminal",
    "mcp_port_taken": "take another --port",
}
"""What to do next, by code, where that is one thing whatever the command was."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One error: a code of :data:`MESSAGES` and, for the command line, the declared option it is about.

    ``hint`` is what to do next where that depends on the command; never anything that was typed.
    """

    code: str
    option: str | None = None
    hint: str | None = None

    @property
    def message(self) -> str:
        """What is wrong, where, and what to do next."""
        text = MESSAGES[self.code]
        if self.option is not None:
            text += f": --{self.option}"
        hint = self.hint if self.hint is not None else HINTS.get(self.code)
        return text if hint is None else f"{text}; {hint}"

    @property
    def line(self) -> str:
        """The message beside its code: what people read, and what they can look up."""
        return f"{self.message} ({self.code})"

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

    ``data`` is the envelope's; ``lines`` are what people read, derived from it; ``document`` is the
    answer itself (an exported file) and is printed whole in place of lines. ``online`` tells that a
    router answered.
    """

    data: Json = None
    lines: tuple[str, ...] = ()
    document: str | bytes | None = None
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
    code: str,
    *,
    option: str | None = None,
    hint: str | None = None,
    data: Json = None,
    lines: tuple[str, ...] = (),
) -> Outcome:
    """A command whose input was bad (exit 2)."""
    return Outcome(data=data, lines=lines, errors=(Fault(code, option, hint),), exit_code=BAD_INPUT)


def refusal_of(
    fault: RouterFault, *, hint: str | None = None, data: Json = None, lines: tuple[str, ...] = ()
) -> Outcome:
    """What a command that the router did not serve comes to; only a bad environment is bad input."""
    return Outcome(
        data=data,
        lines=lines,
        errors=(Fault(fault.code, hint=hint),),
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
    if isinstance(outcome.document, bytes):
        # Not one byte other than captured, whatever the terminal's encoding.
        out.flush()
        out.buffer.write(outcome.document)
        return
    if outcome.document is not None:
        out.write(outcome.document)
        return
    stream = out if outcome.ok else err
    for line in outcome.lines:
        stream.write(plain(line) + "\n")
    if not outcome.lines:
        for fault in outcome.errors:
            stream.write(f"{command}: {fault.line}\n")


def plain(line: str) -> str:
    """``line`` without control characters (a terminal obeys them) and not longer than the limit."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in line[:LINE_LIMIT])
