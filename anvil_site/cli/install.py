"""``anvil router install-config``: exactly the validated bytes, to the router that owns the ledger.

The documents are captured and validated here before anything else, and those bytes, not the files, are what
is sent. The router validates them again before it activates them.
"""

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from routing.snapshot import SnapshotError, ValidatedSnapshot, validation_result

from .changes import change_lines, step_lines
from .check import places
from .client import Target, call
from .outcome import Fault, Json, Outcome, RouterFault, failed, refusal_of, refused, tell_traceback
from .shapes import bounded
from .snapshots import PATH, order, refusal_data
from .spec import Arguments
from .topology import line, validate

UPLOAD_TIMEOUT: Final = 60.0
PREVIEW: Final = "preview: nothing was changed, --confirm installs it"
LABEL: Final = "router install-config"


def install_config(arguments: Arguments) -> Outcome:
    confirmed = arguments.flag("confirm")
    snapshot = validate(arguments)
    validation = validation_result(snapshot)
    data: dict[str, Json] = {
        "applied": False,
        "dry_run": not confirmed,
        "validation": validation,
        "activation": None,
    }
    if isinstance(snapshot, SnapshotError):
        lines = (f"{LABEL}: {Fault(snapshot.code).line}", *places(arguments))
        return refused(snapshot.code, data=data, lines=lines)
    # An address that can't be one is bad input; it must not look like a router that is down.
    target = Target.from_environment()
    try:
        if not confirmed:
            return _preview(snapshot, data)
        number = _upload(snapshot)
    except RouterFault as fault:
        if fault.code == "router_unreachable" and target.is_local:
            return _install_offline(snapshot, data) if confirmed else _preview_offline(data)
        return refusal_of(fault, data=data)
    return _activate(number, arguments.seconds("drain-timeout"), data)


def _preview(snapshot: ValidatedSnapshot, data: dict[str, Json]) -> Outcome:
    """What the router says that it would change; it keeps nothing of what it was sent."""
    body = {**_documents(snapshot), "dry_run": True}
    answer = bounded(call("POST", PATH, body=body, timeout=UPLOAD_TIMEOUT).body)
    if (
        not isinstance(answer, Mapping)
        or answer.get("applied") is not False
        or answer.get("config_sha256") != snapshot.config_sha256
    ):
        raise RouterFault("malformed_answer")
    data["activation"] = answer
    lines = (line(validation_result(snapshot)), PREVIEW, *change_lines(answer))
    return Outcome(data=data, lines=lines, online=True)


def _preview_offline(data: dict[str, Json]) -> Outcome:
    validation = data["validation"]
    assert isinstance(validation, Mapping)
    warning = "no router answers at ANVIL_URL: what it would change there is not known"
    return Outcome(data=data, lines=(line(validation), PREVIEW), warnings=(warning,))


def _upload(snapshot: ValidatedSnapshot) -> int:
    """Send the captured bytes; the number of the router's snapshot of exactly those."""
    answer = call("POST", PATH, body=_documents(snapshot), timeout=UPLOAD_TIMEOUT).body
    number = answer.get("id")
    if type(number) is not int or number < 1 or answer.get("config_sha256") != snapshot.config_sha256:
        raise RouterFault("malformed_answer")
    return number


def _documents(snapshot: ValidatedSnapshot) -> dict[str, Json]:
    """The body that carries exactly the captured bytes."""
    body: dict[str, Json] = {"config": _base64(snapshot.config_bytes)}
    if snapshot.topology_bytes is not None:
        body["topology"] = _base64(snapshot.topology_bytes)
    if snapshot.overlay_bytes is not None:
        body["overlay"] = _base64(snapshot.overlay_bytes)
    return body


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _activate(number: int, drain_timeout: float | None, data: dict[str, Json]) -> Outcome:
    try:
        answer = order(number, confirmed=True, drain_timeout=drain_timeout)
    except RouterFault as fault:
        told = refusal_data(fault)
        data["activation"] = told or None
        lines = (f"{LABEL}: {Fault(fault.code).line}", *step_lines(told))
        return refusal_of(fault, data=data, lines=lines)
    data["applied"] = True
    data["activation"] = answer
    lines = (f"installed and active: snapshot {number}", *step_lines(answer))
    return Outcome(data=data, lines=lines, online=True)


def _install_offline(snapshot: ValidatedSnapshot, data: dict[str, Json]) -> Outcome:
    """No router runs here: change the data directory itself, if nobody owns it."""
    if not os.environ.get("ANVIL_DATA") and not Path("var").is_dir():
        # A shell without the router's environment must not make a second router and call it done.
        return failed("data_directory_missing", data=data)
    from anvil_site.offline import LedgerOwned, install_snapshot

    try:
        activation = install_snapshot(snapshot.config_bytes, snapshot.topology_bytes, snapshot.overlay_bytes)
    except LedgerOwned:
        return failed("ledger_owned", data=data)
    except Exception:  # noqa: BLE001 - a database's error text names files and hosts
        tell_traceback()
        return failed("offline_failed", data=data)
    data["applied"] = True
    data["activation"] = bounded(activation)
    return Outcome(data=data, lines=("installed; it is active when the router starts",))
