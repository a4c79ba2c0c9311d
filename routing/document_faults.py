"""Everything wrong with a configuration, its topology and their join, each with its place: for the owner.

`snapshot` answers a refusal with one fixed code. This says what exactly is wrong, and shows what stands in
the documents (never what may be a secret), so it goes to whoever handed them in and to nobody else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from routing.config import read_config
from routing.documents import MAX_DOCUMENT_BYTES, Fault
from routing.snapshot import SnapshotCode, join_faults
from routing.topology import Topology, TopologyError, parse_topology

DocumentName: TypeAlias = Literal["config", "topology", "overlay"]

_WITHOUT_TOPOLOGY: Final = ("replica_resource_reused", "replica_host_split")
"""The rules of the join that the configuration breaks on its own."""


@dataclass(frozen=True, slots=True)
class DocumentFault:
    """One fault, the document that holds it, and the code with which a snapshot would be refused for it."""

    code: SnapshotCode
    document: DocumentName
    fault: Fault

    def __str__(self) -> str:
        return f"{self.document}: {self.fault}"


def document_faults(
    config: bytes | None,
    topology: bytes | None = None,
    overlay: bytes | None = None,
    *,
    topology_readable: bool = True,
) -> Iterator[DocumentFault]:
    """The configuration's faults, the topology's, then the join's; none exactly when a snapshot is valid.

    ``config`` is None, and ``topology_readable`` False, where a document is named but could not be read: what
    depends on it is then not judged.
    """
    reading = None if config is None else read_config(config)
    if config is not None and reading is not None and reading.config is None:
        code: SnapshotCode = (
            "config_too_large" if len(config) > MAX_DOCUMENT_BYTES else "router_config_invalid"
        )
        yield from (DocumentFault(code, "config", fault) for fault in reading.faults)
    joined: Topology | None = None
    if topology is not None and topology_readable:
        try:
            joined = parse_topology(topology, overlay)
        except TopologyError as error:
            topology_readable = False
            yield from (DocumentFault("topology_invalid", "topology", fault) for fault in error.faults)
    elif topology is None and overlay is not None:
        topology_readable = False
        yield DocumentFault("topology_invalid", "overlay", Fault("document", "needs a topology below it"))
    if reading is not None and reading.config is not None:
        for code, fault in join_faults(reading.config, joined):
            if topology_readable or code in _WITHOUT_TOPOLOGY:
                yield DocumentFault(code, "config", fault)
