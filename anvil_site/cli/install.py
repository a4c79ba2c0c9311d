"""``anvil router install-config``: exactly the validated bytes, to the router that owns the ledger.

The documents are captured and validated here before anything else, and those bytes, not the files, are what
is sent. The router validates them again before it activates them.
"""

import base64
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from routing.snapshot import SnapshotError, ValidatedSnapshot, validation_result

from .client import Target, call
from .outcome import Fault, Json, Outcome, RouterFault, failed, refusal_of, refused, tell_traceback
from .shapes import bounded
from .spec import Arguments
from .topology import line, validate

PATH: Final = "/v1/admin/snapshots"
UPLOAD_TIMEOUT: Final = 60.0
STEPS: Final = 3
"""A tier's drain, the probes that verify it and the way back may each take the drain's time."""


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
        return refused(snapshot.code, data=data, lines=(line(validation),))
    if not confirmed:
        preview = "preview: nothing was changed, --confirm installs it"
        return Outcome(data=data, lines=(line(validation), preview))
    # An address that can't be one is bad input; it must not look like a router that is down.
    target = Target.from_environment()
    try:
        number = _upload(snapshot)
    except RouterFault as fault:
        if fault.code == "router_unreachable" and target.is_local:
            return _install_offline(snapshot, data)
        return refusal_of(fault, data=data)
    return _activate(number, arguments.seconds("drain-timeout"), data)


def _upload(snapshot: ValidatedSnapshot) -> int:
    """Send the captured bytes; the number of the router's snapshot of exactly those."""
    body: dict[str, Json] = {"config": _base64(snapshot.config_bytes)}
    if snapshot.topology_bytes is not None:
        body["topology"] = _base64(snapshot.topology_bytes)
    if snapshot.overlay_bytes is not None:
        body["overlay"] = _base64(snapshot.overlay_bytes)
    answer = call("POST", PATH, body=body, timeout=UPLOAD_TIMEOUT).body
    number = answer.get("id")
    if type(number) is not int or number < 1 or answer.get("config_sha256") != snapshot.config_sha256:
        raise RouterFault("malformed_answer")
    return number


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _activate(number: int, drain_timeout: float | None, data: dict[str, Json]) -> Outcome:
    body: dict[str, Json] = {"confirm": True}
    if drain_timeout is not None:
        body["drain_timeout"] = drain_timeout
    try:
        answer = call(
            "POST",
            f"{PATH}/{number}/activate",
            body=body,
            timeout=UPLOAD_TIMEOUT + STEPS * (drain_timeout or 0.0),
        )
    except RouterFault as fault:
        rest = {key: value for key, value in (fault.body or {}).items() if key != "error"}
        data["activation"] = bounded(rest) or None
        lines = (f"router install-config: {Fault(fault.code).line}", *_steps(data["activation"]))
        return refusal_of(fault, data=data, lines=lines)
    data["applied"] = True
    data["activation"] = bounded(answer.body)
    return Outcome(data=data, lines=("installed and active", *_steps(data["activation"])), online=True)


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


def _steps(activation: Json) -> Iterable[str]:
    """One line for each step or scope that the router reports."""
    if not isinstance(activation, Mapping):
        return
    for key in ("steps", "scopes"):
        found = activation.get(key)
        for item in found if isinstance(found, list) else ():
            words = item.values() if isinstance(item, Mapping) else (item,)
            yield "  " + " ".join(str(word) for word in words if word is not None)
