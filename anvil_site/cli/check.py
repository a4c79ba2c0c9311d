"""``anvil router check``: every fault of a configuration with its place, for the one who owns the file.

Unlike every other command, this one shows what stands in the documents (but never what may be a secret).
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from routing.config import read_config
from routing.documents import MAX_DOCUMENT_BYTES, Fault, read_bounded
from routing.snapshot import (
    CODES,
    SnapshotCode,
    SnapshotError,
    join_faults,
    validate_snapshot,
    validation_result,
)
from routing.topology import Topology, TopologyError, parse_topology

from .outcome import Json, Outcome, refused
from .spec import Arguments
from .topology import line

_WITHOUT_TOPOLOGY: Final = ("replica_resource_reused", "replica_host_split")
"""The rules of the join that the configuration breaks on its own."""


@dataclass(frozen=True, slots=True)
class Found:
    """One fault, the document that holds it, and the code with which a snapshot would be refused for it."""

    code: SnapshotCode
    document: str
    fault: Fault


def check(arguments: Arguments) -> Outcome:
    paths = arguments.required_path("config"), arguments.path("topology"), arguments.path("topology-overlay")
    # Read once: a document may come through a pipe.
    config, topology, overlay = (None if path is None else _read(path) for path in paths)
    documents = zip(("config", "topology", "overlay"), paths, (config, topology, overlay), strict=True)
    unreadable = [
        Found(
            "router_config_invalid" if document == "config" else "topology_invalid",
            document,
            Fault("document", "can't be read"),
        )
        for document, path, data in documents
        if path is not None and data is None
    ]
    found = [*unreadable, *_faults(config, topology, overlay, topology_readable=not unreadable)]
    if not found:
        assert config is not None
        result = validation_result(validate_snapshot(config, topology, overlay))
        return Outcome(data={**result, "faults": []}, lines=(line(result),))
    code = min((item.code for item in found), key=CODES.index)
    complete = config is not None and len(config) <= MAX_DOCUMENT_BYTES
    digest = hashlib.sha256(config).hexdigest() if config is not None and complete else None
    result = validation_result(SnapshotError(code, config_sha256=digest))
    faults: list[Json] = [
        {"document": item.document, "path": item.fault.path, "message": item.fault.message} for item in found
    ]
    lines = tuple(f"{item.document}: {item.fault}" for item in found)
    return refused(code, data={**result, "faults": faults}, lines=(*lines, line(result)))


def _faults(
    config: bytes | None, topology: bytes | None, overlay: bytes | None, *, topology_readable: bool
) -> Iterator[Found]:
    """The configuration's faults, the topology's, then the join's."""
    reading = None if config is None else read_config(config)
    if config is not None and reading is not None and reading.config is None:
        code: SnapshotCode = (
            "config_too_large" if len(config) > MAX_DOCUMENT_BYTES else "router_config_invalid"
        )
        yield from (Found(code, "config", fault) for fault in reading.faults)
    joined: Topology | None = None
    if topology is not None and topology_readable:
        try:
            joined = parse_topology(topology, overlay)
        except TopologyError as error:
            topology_readable = False
            yield from (Found("topology_invalid", "topology", fault) for fault in error.faults)
    elif topology is None and overlay is not None:
        topology_readable = False
        yield Found("topology_invalid", "overlay", Fault("document", "needs a topology below it"))
    if reading is not None and reading.config is not None:
        for code, fault in join_faults(reading.config, joined):
            if topology_readable or code in _WITHOUT_TOPOLOGY:
                yield Found(code, "config", fault)


def _read(path: Path) -> bytes | None:
    try:
        return read_bounded(path)
    except (OSError, ValueError):
        return None
