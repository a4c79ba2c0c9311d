"""``anvil router check``: every fault of a configuration with its place, for the one who owns the file.

Unlike every other command, this one shows what stands in the documents (but never what may be a secret).
"""

import hashlib
from pathlib import Path

from routing.document_faults import DocumentFault, DocumentName, document_faults
from routing.documents import MAX_DOCUMENT_BYTES, Fault, read_bounded
from routing.snapshot import CODES, SnapshotError, validate_snapshot, validation_result

from .outcome import Json, Outcome, refused
from .spec import Arguments
from .topology import line

DOCUMENTS: tuple[DocumentName, ...] = ("config", "topology", "overlay")


def check(arguments: Arguments) -> Outcome:
    paths = arguments.required_path("config"), arguments.path("topology"), arguments.path("topology-overlay")
    # Read once: a document may come through a pipe.
    config, topology, overlay = (None if path is None else _read(path) for path in paths)
    documents = zip(DOCUMENTS, paths, (config, topology, overlay), strict=True)
    unreadable = [
        DocumentFault(
            "router_config_invalid" if document == "config" else "topology_invalid",
            document,
            Fault("document", "can't be read"),
        )
        for document, path, data in documents
        if path is not None and data is None
    ]
    found = [*unreadable, *document_faults(config, topology, overlay, topology_readable=not unreadable)]
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


def _read(path: Path) -> bytes | None:
    try:
        return read_bounded(path)
    except (OSError, ValueError):
        return None
