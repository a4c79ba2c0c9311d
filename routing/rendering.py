"""Configurations and topologies as TOML: the one place that writes either grammar.

What is written is a new document, for a publication and for people to compare. Nothing that was captured is
ever written anew: there the bytes count.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, cast

import tomlkit
from tomlkit.items import Item
from tomlkit.items import Table as TomlTable

from routing import config as config_module
from routing import topology as topology_module
from routing.config import RouterConfig, thaw
from routing.topology import SCHEMA_VERSION, Topology

Table: TypeAlias = dict[str, object]

_EMPTY: Final[tuple[object, ...]] = ("", [], {})


def is_absent(value: object) -> bool:
    """Whether a key with this value is left out: in both grammars it then means the same.

    Only ``roles`` of a host is required and may be empty; whoever writes one puts it back.
    """
    return value is None or value is False or value in _EMPTY


def config_document(config: RouterConfig) -> Table:
    """The document that parses to ``config``, every setting of ``[router]`` spelled out."""
    return assemble_config(
        server=_table("server", config.server),
        router=_table("router", config.router),
        model_routes=config.model_routes,
        tiers=[
            {
                **_table("tier", tier),
                **nested(
                    replica_identity=_table("replica_identity", tier.replica_identity),
                    replicas=[_table("replica", member) for member in tier.replicas],
                ),
            }
            for tier in config.tiers
        ],
        purpose_models=[_table("purpose_model", model) for model in config.purpose_models],
        audio_routes=[_table("audio_route", route) for route in config.audio_routes],
    )


def topology_document(topology: Topology) -> Table:
    """The document that parses to ``topology``; what an overlay changed is in it."""
    return assemble_topology(
        header={"id": topology.id},
        hosts=[{**_table("host", host), "roles": list(host.roles)} for host in topology.hosts],
        gpu_roles=[_table("gpu_role", role) for role in topology.gpu_roles],
        resources=[_table("resource", resource) for resource in topology.resources],
    )


def assemble_config(
    *,
    server: Table,
    router: Table,
    model_routes: Mapping[str, str],
    tiers: Sequence[Table],
    purpose_models: Sequence[Table],
    audio_routes: Sequence[Table],
) -> Table:
    """One document of these tables; empty ones are left out, but ``[router]`` never."""
    lists = nested(
        model_routes=dict(model_routes),
        tiers=list(tiers),
        purpose_models=list(purpose_models),
        audio_routes=list(audio_routes),
    )
    return {**nested(server=server), "router": {**router, **lists}}


def assemble_topology(
    *, header: Table, hosts: Sequence[Table], gpu_roles: Sequence[Table], resources: Sequence[Table]
) -> Table:
    """One document of these tables, empty ones left out."""
    lists = nested(hosts=list(hosts), gpu_roles=list(gpu_roles), resources=list(resources))
    return {"schema_version": SCHEMA_VERSION, **header, **lists}


def nested(**tables: object) -> Table:
    """Those of ``tables`` that hold anything."""
    return {key: table for key, table in tables.items() if table}


def render(document: Table) -> bytes:
    """``document`` as TOML: in each table its values, then its tables, both in their order."""
    toml = tomlkit.document()
    _fill(toml, document)
    return toml.as_string().encode("utf-8")


def _fill(target: "tomlkit.TOMLDocument | TomlTable", values: Mapping[str, object]) -> None:
    for key, value in sorted(values.items(), key=lambda entry: _is_nested(entry[1])):
        target.append(key, _item(value))


def _item(value: object) -> Item:
    if not _is_nested(value):
        return tomlkit.item(value)
    if isinstance(value, list):
        tables = tomlkit.aot()
        tables.extend(_item(entry) for entry in value)
        return tables
    table = tomlkit.table()
    _fill(table, cast(Table, value))
    return table


def _is_nested(value: object) -> bool:
    """Whether TOML has a header for it: a table, or an array of nothing but tables."""
    return isinstance(value, dict) or (
        isinstance(value, list) and value != [] and all(isinstance(entry, dict) for entry in value)
    )


def _ordered(value: object) -> object:
    """Free-form values with their keys sorted: their order means nothing, and not every database keeps it."""
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    return [_ordered(entry) for entry in value] if isinstance(value, list) else value


def _table(name: str, source: object) -> Table:
    """The table of that name, with the values that ``source`` has under the keys' own names."""
    if source is None:
        return {}
    rules = config_module.FIELD_RULES.get(name) or topology_module.FIELD_RULES[name]
    values = {key: _ordered(thaw(getattr(source, key))) for key in rules}
    return {key: value for key, value in values.items() if not is_absent(value)}
