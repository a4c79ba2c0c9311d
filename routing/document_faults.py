"""Everything wrong with a configuration, its topology and their join, each with its place: for the owner.

`snapshot` answers a refusal with one fixed code. This says what exactly is wrong, and shows what stands in
the documents (never what may be a secret), so it goes to whoever handed them in and to nobody else.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from routing.config import read_config
from routing.documents import MAX_DOCUMENT_BYTES, Fault
from routing.snapshot import SnapshotCode, join_faults
from routing.toml_lines import Lines
from routing.topology import Topology, TopologyError, parse_topology

DocumentName: TypeAlias = Literal["config", "topology", "overlay"]
DOCUMENTS: Final[tuple[DocumentName, ...]] = get_args(DocumentName)

_WITHOUT_TOPOLOGY: Final = ("replica_resource_reused", "replica_host_split")
"""The rules of the join that the configuration breaks on its own."""

_STATED_LINE: Final = re.compile(r"\(at line (\d+), column \d+\)")
"""How the TOML parser says where it stopped."""


@dataclass(frozen=True, slots=True)
class DocumentFault:
    """One fault, the document that holds it, and the code with which a snapshot would be refused for it.

    ``line`` is where in the document it is, or what it is in, or where the parser stopped: None for the
    document as a whole.
    """

    code: SnapshotCode
    document: DocumentName
    fault: Fault
    line: int | None = field(default=None, compare=False)

    @property
    def place(self) -> str:
        """The document, the line and the path, without a word of what is there."""
        where = self.document if self.line is None else f"{self.document} line {self.line}"
        return f"{where}: {self.fault.path}"

    def as_json(self) -> dict[str, str | int | None]:
        """As the REST API and ``anvil router check`` list it."""
        return {
            "document": self.document,
            "line": self.line,
            "path": self.fault.path,
            "message": self.fault.message,
        }

    def __str__(self) -> str:
        return f"{self.document}: {self.fault}"


def document_faults(
    config: bytes | None,
    topology: bytes | None = None,
    overlay: bytes | None = None,
    *,
    topology_readable: bool = True,
) -> Iterator[DocumentFault]:
    """The configuration's faults, those of the topology and of its overlay, then the join's; none exactly
    when a snapshot is valid. Within each of these they come in the order of the document.

    ``config`` is None, and ``topology_readable`` False, where a document is named but could not be read: what
    depends on it is then not judged.
    """
    reading = None if config is None else read_config(config)
    code: SnapshotCode
    if config is not None and reading is not None and reading.config is None:
        code = "config_too_large" if len(config) > MAX_DOCUMENT_BYTES else "router_config_invalid"
        yield from _in_lines([(code, fault) for fault in reading.faults], "config", config)
    joined: Topology | None = None
    if topology is not None and topology_readable:
        try:
            joined = parse_topology(topology, overlay)
        except TopologyError as error:
            topology_readable = False
            for name, data in (("", topology), ("overlay", overlay)):
                code = "topology_invalid"
                faults = [(code, fault) for fault in error.faults if fault.name == name]
                yield from _in_lines(faults, "overlay" if name else "topology", data or b"")
    elif topology is None and overlay is not None:
        topology_readable = False
        yield DocumentFault("topology_invalid", "overlay", Fault("document", "needs a topology below it"))
    if config is not None and reading is not None and reading.config is not None:
        found = join_faults(reading.config, joined)
        told = [item for item in found if topology_readable or item[0] in _WITHOUT_TOPOLOGY]
        yield from sorted(_in_lines(told, "config", config), key=lambda item: item.line or 0)


def _in_lines(
    faults: Sequence[tuple[SnapshotCode, Fault]], document: DocumentName, data: bytes
) -> list[DocumentFault]:
    """The faults of one document with their lines, in the order in which they came."""
    if not faults:
        return []
    lines = Lines(data[: MAX_DOCUMENT_BYTES + 1])
    return [DocumentFault(code, document, fault, _line_of(fault, lines)) for code, fault in faults]


def _line_of(fault: Fault, lines: Lines) -> int | None:
    if fault.place:
        return lines.of(fault.place)
    stated = _STATED_LINE.search(fault.message)
    return int(stated[1]) if stated else None
