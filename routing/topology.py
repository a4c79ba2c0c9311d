"""The topology: which hosts there are, what runs on them and where it answers. TOML bytes in, frozen values
or every fault out.

An overlay is a second document of the same grammar, usually a private file beside a public one. Each entry of
it replaces the entry of the same id, as a whole, or adds one; its ``id``, if it has one, replaces the
topology's. References are checked on the result. Faults of an overlay have paths that begin with ``overlay``.

Nothing here resolves a name or connects to anything: a topology is what the operator declares.
Source: the topology part of the router configuration contract.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from admission.identifiers import is_safe_id
from routing import rules
from routing.documents import DocumentError, Fault, Faults, Grammar, Rule, Table, check_unique, load_toml

SCHEMA_VERSION: Final = 1


class TopologyError(DocumentError):
    """A topology was refused; ``faults`` holds all reasons: the document's in order, then the overlay's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    id: str
    roles: tuple[str, ...]
    address: str | None = field(default=None, repr=False)
    os: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRole:
    """A GPU of one host by the part it plays; memory in MiB."""

    id: str
    host: str
    uuid: str = field(repr=False)
    vram_mib: int | None = None
    reserve_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Something that runs on a host. Without an ``endpoint`` it can't be a member of a replica tier."""

    id: str
    host: str
    role: str
    endpoint: str | None = field(default=None, repr=False)
    endpoint_kind: str | None = None
    workload: str | None = None
    gpu_role: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A whole valid topology: ids are unique among their kind and every reference leads somewhere."""

    id: str
    hosts: tuple[Host, ...] = ()
    resources: tuple[Resource, ...] = ()
    gpu_roles: tuple[GpuRole, ...] = ()
    _resources_by_id: Mapping[str, Resource] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_id = MappingProxyType({resource.id: resource for resource in self.resources})
        object.__setattr__(self, "_resources_by_id", by_id)

    def resource(self, resource_id: str) -> Resource | None:
        return self._resources_by_id.get(resource_id)


_ADDRESS = re.compile(r"[A-Za-z0-9.:_\[\]-]{1,253}")
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9./:_-]{0,127}")

_SAFE_ID = rules.named(is_safe_id, "a letter and up to 63 more letters, digits, _ or -")
_MIB = rules.integer(1, 100_000_000)

_HEADER_RULES: Final[Mapping[str, Rule]] = {"schema_version": rules.choice(SCHEMA_VERSION), "id": _SAFE_ID}
_KINDS: Final = ("hosts", "resources", "gpu_roles")
_DOCUMENT = Grammar(rules=_HEADER_RULES, required=("schema_version", "id"), nested=_KINDS)
_OVERLAY = Grammar(rules=_HEADER_RULES, required=("schema_version",), nested=_KINDS)
_HOST = Grammar(
    rules={
        "id": _SAFE_ID,
        "roles": rules.words(_SAFE_ID, limit=16),
        "address": rules.named(
            lambda value: type(value) is str and _ADDRESS.fullmatch(value) is not None,
            "a host name or address of 1 to 253 characters",
        ),
        "os": rules.text(64),
    },
    required=("id", "roles"),
)
_RESOURCE = Grammar(
    rules={
        "id": _SAFE_ID,
        "host": _SAFE_ID,
        "role": _SAFE_ID,
        "endpoint": rules.url,
        "endpoint_kind": rules.text(64),
        "workload": rules.text(128),
        "gpu_role": _SAFE_ID,
    },
    required=("id", "host", "role"),
)
_GPU_ROLE = Grammar(
    rules={
        "id": _SAFE_ID,
        "host": _SAFE_ID,
        "uuid": rules.named(
            lambda value: type(value) is str and _UUID.fullmatch(value) is not None,
            "1 to 128 letters, digits, . / : _ or -, the first a letter or digit",
        ),
        "vram_mib": _MIB,
        "reserve_mib": rules.integer(0, 100_000_000),
    },
    required=("id", "host", "uuid"),
)

FIELD_RULES: Final[Mapping[str, Mapping[str, Rule]]] = MappingProxyType(
    {
        "topology": _HEADER_RULES,
        "host": _HOST.rules,
        "resource": _RESOURCE.rules,
        "gpu_role": _GPU_ROLE.rules,
    }
)
"""The rule of each key, by kind of table: the whole grammar, for whoever edits it field by field."""


class _Document:
    """One document as written, and its entries by id."""

    def __init__(self, data: bytes, grammar: Grammar, *, name: str = "") -> None:
        document = load_toml(data)
        self.unreadable = document if isinstance(document, Fault) else None
        parsed = {} if isinstance(document, Fault) else document
        self.faults = Faults(parsed, name=name)
        self._name = name
        if self.unreadable is not None:
            self.entries: dict[str, dict[str, Table]] = {kind: {} for kind in _KINDS}
            self.values: dict[str, object] = {}
            return
        root = Table(self.faults, (), parsed, grammar)
        self.values = root.values
        found = {
            "hosts": root.tables("hosts", _HOST),
            "resources": root.tables("resources", _RESOURCE),
            "gpu_roles": root.tables("gpu_roles", _GPU_ROLE),
        }
        for tables in found.values():
            check_unique(tables, "id")
        for table in found["gpu_roles"]:
            _check_reserve(table)
        # By the id as written: a reference to an entry with an invalid id is not a second fault.
        self.entries = {
            kind: {value: table for table in tables if isinstance(value := table.raw.get("id"), str)}
            for kind, tables in found.items()
        }

    def all_faults(self) -> tuple[Fault, ...]:
        if self.unreadable is None:
            return self.faults.in_order()
        return (Fault(self._name or self.unreadable.path, self.unreadable.message, name=self._name),)


def parse_topology(data: bytes, overlay: bytes | None = None) -> Topology:
    """The topology that ``data`` holds with ``overlay`` laid over it, each at most 1 MiB of UTF-8 TOML.

    Raises TopologyError with all faults of both. Nothing else is raised for any bytes.
    """
    documents = [_Document(data, _DOCUMENT)]
    if overlay is not None:
        documents.append(_Document(overlay, _OVERLAY, name="overlay"))
    entries: dict[str, dict[str, Table]] = {kind: {} for kind in _KINDS}
    header: dict[str, object] = {}
    for document in documents:
        header |= document.values
        for kind in _KINDS:
            entries[kind] |= document.entries[kind]
    if all(document.unreadable is None for document in documents):
        _check_references(entries)
    faults = [fault for document in documents for fault in document.all_faults()]
    if faults:
        raise TopologyError(faults)
    return Topology(
        id=str(header["id"]),
        hosts=tuple(Host(**table.values) for table in entries["hosts"].values()),
        resources=tuple(Resource(**table.values) for table in entries["resources"].values()),
        gpu_roles=tuple(GpuRole(**table.values) for table in entries["gpu_roles"].values()),
    )


def _check_references(entries: Mapping[str, Mapping[str, Table]]) -> None:
    hosts, gpu_roles = entries["hosts"], entries["gpu_roles"]
    for table in (*entries["resources"].values(), *gpu_roles.values()):
        host = table.values.get("host")
        if host is not None and host not in hosts:
            table.refuse("host", f"must be the id of a configured host{rules.shown(host)}")
    for table in entries["resources"].values():
        role_id = table.values.get("gpu_role")
        if role_id is None:
            continue
        role = gpu_roles.get(role_id)
        if role is None:
            table.refuse("gpu_role", f"must be the id of a configured GPU role{rules.shown(role_id)}")
            continue
        own, other = table.values.get("host"), role.values.get("host")
        # Only between two known hosts: an unknown one has been told already.
        if own != other and {own, other} <= hosts.keys():
            table.refuse("gpu_role", "must be on the resource's own host")


def _check_reserve(table: Table) -> None:
    vram, reserve = table.values.get("vram_mib"), table.values.get("reserve_mib")
    if vram is not None and reserve is not None and reserve > vram:
        table.refuse("reserve_mib", f"must be at most vram_mib, {vram}, not {reserve}")


def check_field(table: str, key: str, value: object) -> object:
    """The frozen form of one value under its rule, ``FIELD_RULES[table][key]``.

    Raises ValueError, its text a message for the value's owner.
    """
    return FIELD_RULES[table][key](value)


_TABLES: Final[Mapping[str, Grammar]] = {"host": _HOST, "resource": _RESOURCE, "gpu_role": _GPU_ROLE}


def table_faults(table: str, values: Mapping[str, object]) -> tuple[Fault, ...]:
    """All faults of one ``host``, ``resource`` or ``gpu_role`` on its own; references are not looked at."""
    faults = Faults(values)
    read = Table(faults, (), values, _TABLES[table])
    if table == "gpu_role":
        _check_reserve(read)
    return faults.in_order()
