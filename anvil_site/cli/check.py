"""``anvil router check``: every fault of a configuration with its place, for the one who owns the file.

Unlike every other command, this one shows what stands in the documents (but never what may be a secret).
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from routing.config import unset_auth_envs
from routing.document_faults import DOCUMENTS, DocumentFault, document_faults
from routing.documents import MAX_DOCUMENT_BYTES, Fault, read_bounded
from routing.snapshot import (
    CODES,
    SnapshotError,
    ValidatedSnapshot,
    validate_snapshot,
    validation_result,
)

from .outcome import Json, Outcome, refused
from .spec import Arguments
from .topology import line

MAX_PLACES: Final = 20


def check(arguments: Arguments) -> Outcome:
    paths = _paths(arguments)
    # Read once: a document may come through a pipe.
    config, topology, overlay = documents = tuple(None if path is None else _read(path) for path in paths)
    found = _faults(paths, documents)
    if not found:
        assert config is not None
        snapshot = validate_snapshot(config, topology, overlay)
        result = validation_result(snapshot)
        warnings = tuple(_unset(snapshot))
        return Outcome(data={**result, "faults": []}, lines=(line(result),), warnings=warnings)
    code = min((item.code for item in found), key=CODES.index)
    complete = config is not None and len(config) <= MAX_DOCUMENT_BYTES
    digest = hashlib.sha256(config).hexdigest() if config is not None and complete else None
    result = validation_result(SnapshotError(code, config_sha256=digest))
    faults: list[Json] = [item.as_json() for item in found]
    lines = tuple(f"{item.place}: {item.fault.message}" for item in found)
    return refused(code, data={**result, "faults": faults}, lines=(*lines, line(result)))


def places(arguments: Arguments) -> tuple[str, ...]:
    """Where the faults of what the options name are, for a command whose answers hold nothing that was read.

    None where a document is no plain file: what came through a pipe is gone.
    """
    paths = _paths(arguments)
    if not all(path is None or path.is_file() for path in paths):
        return ()
    found = _faults(paths, tuple(None if path is None else _read(path) for path in paths))
    shown = [f"  {item.place}" for item in found[:MAX_PLACES]]
    more = len(found) - len(shown)
    return (*shown, *((f"  and {more} more",) if more else ()))


def _paths(arguments: Arguments) -> tuple[Path | None, Path | None, Path | None]:
    return arguments.path("config"), arguments.path("topology"), arguments.path("topology-overlay")


def _faults(paths: Sequence[Path | None], documents: Sequence[bytes | None]) -> list[DocumentFault]:
    unreadable = [
        DocumentFault(
            "router_config_invalid" if document == "config" else "topology_invalid",
            document,
            Fault("document", "can't be read"),
        )
        for document, path, data in zip(DOCUMENTS, paths, documents, strict=True)
        if path is not None and data is None
    ]
    return [*unreadable, *document_faults(*documents, topology_readable=not unreadable)]


def _unset(snapshot: ValidatedSnapshot) -> Iterator[str]:
    """Of each variable that is not set where this runs: what names it, and what that means."""
    for place in unset_auth_envs(snapshot.config, os.environ):
        token = "no bootstrap token" if place == "server.auth_env" else "no Authorization header is sent"
        yield f"{place} names a variable that is not set here; where the router runs without it: {token}"


def _read(path: Path) -> bytes | None:
    try:
        return read_bounded(path)
    except (OSError, ValueError):
        return None
