"""The working copy: rows in, documents out, and back.

Reading gives one consistent `WorkingCopy`. What it renders goes through the same capture and validation as a
file does (`routing.publishing`); what is wrong with it is told by the same rules, with the row it is in.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from django.db import transaction

from routing.audit import Through
from routing.config import FIELD_RULES, RouterConfig, table_faults
from routing.document_faults import DocumentFault, document_faults
from routing.documents import Fault, render_path
from routing.models import (
    AudioRoute,
    GpuRole,
    Host,
    ModelRoute,
    PurposeModel,
    ReplicaMember,
    Resource,
    RouterSettings,
    RouterSnapshot,
    Tier,
)
from routing.publishing import capture, load
from routing.rendering import (
    Table,
    assemble_config,
    assemble_topology,
    config_document,
    render,
    topology_document,
)
from routing.snapshot import ValidatedSnapshot
from routing.topology import Topology
from routing.working_row import NamedRow, WorkingRow

Row = WorkingRow | ModelRoute
Named = TypeVar("Named", bound=NamedRow)

_PLACE: Final = re.compile(
    r"(?:router\.)?(?P<kind>tiers|purpose_models|audio_routes|hosts|resources|gpu_roles)\[(?P<number>\d+)\]"
    r"(?:\.replicas\[(?P<member>\d+)\])?(?:\.(?P<below>.+))?"
)


@dataclass(frozen=True, slots=True)
class WorkingCopyFault:
    """A fault of what would be published, and where to mend it: the row, and its column when there is one.

    ``row`` is None where no single row is at fault.
    """

    fault: DocumentFault
    row: Row | None
    column: str | None

    def __str__(self) -> str:
        return str(self.fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingCopy:
    """All rows, read at one moment, each kind in its order. ``members`` are by tier."""

    settings: RouterSettings
    tiers: tuple[Tier, ...]
    members: Mapping[int, tuple[ReplicaMember, ...]]
    routes: tuple[ModelRoute, ...]
    purpose_models: tuple[PurposeModel, ...]
    audio_routes: tuple[AudioRoute, ...]
    hosts: tuple[Host, ...]
    gpu_roles: tuple[GpuRole, ...]
    resources: tuple[Resource, ...]

    @classmethod
    def read(cls) -> "WorkingCopy":
        """The rows as they are now."""
        with transaction.atomic():
            members: dict[int, list[ReplicaMember]] = {}
            for member in ReplicaMember.objects.all():
                members.setdefault(member.tier_id, []).append(member)
            return cls(
                settings=RouterSettings.current(),
                tiers=tuple(Tier.objects.all()),
                members={tier_id: tuple(found) for tier_id, found in members.items()},
                routes=tuple(ModelRoute.objects.select_related("tier")),
                purpose_models=tuple(PurposeModel.objects.all()),
                audio_routes=tuple(AudioRoute.objects.all()),
                hosts=tuple(Host.objects.all()),
                gpu_roles=tuple(GpuRole.objects.select_related("host")),
                resources=tuple(Resource.objects.select_related("host", "gpu_role")),
            )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to publish yet."""
        return not (self.tiers or self.purpose_models or self.audio_routes or self.hosts)

    def config_document(self) -> Table:
        return assemble_config(
            server=self.settings.server_table(),
            router=self.settings.as_table(),
            model_routes={route.alias: route.tier.identifier for route in self.routes},
            tiers=[tier.as_table(self.members.get(tier.pk, ())) for tier in self.tiers],
            purpose_models=[row.as_table() for row in self.purpose_models],
            audio_routes=[row.as_table() for row in self.audio_routes],
        )

    def topology_document(self) -> Table | None:
        """None when nothing of a topology is there."""
        header = self.settings.topology_header()
        if not (header or self.hosts or self.resources or self.gpu_roles):
            return None
        return assemble_topology(
            header=header,
            hosts=[row.as_table() for row in self.hosts],
            gpu_roles=[row.as_table() for row in self.gpu_roles],
            resources=[row.as_table() for row in self.resources],
        )

    def render(self) -> tuple[bytes, bytes | None]:
        """The bytes of both documents; the second is None where there is no topology."""
        topology = self.topology_document()
        return render(self.config_document()), None if topology is None else render(topology)

    def faults(self) -> tuple[WorkingCopyFault, ...]:
        """Everything for which publishing would be refused, in document order; empty when it would not."""
        config, topology = self.render()
        return tuple(self._placed(fault) for fault in document_faults(config, topology))

    def differs_from(self, active: ValidatedSnapshot | None) -> bool:
        """Whether publishing would mean anything else than what is active; layout and comments don't."""
        if active is None:
            return not self.is_empty
        topology = None if active.topology is None else topology_document(active.topology)
        # By their JSON, where 1 and true differ.
        return _canonical(self.config_document(), self.topology_document()) != _canonical(
            config_document(active.config), topology
        )

    def _placed(self, fault: DocumentFault) -> WorkingCopyFault:
        row, below = self._row_at(fault.fault.path)
        if row is None or not below or isinstance(row, ModelRoute):
            return WorkingCopyFault(fault, row, None)
        column, _ = row.column_of(Fault(below, fault.fault.message))
        columns = {field.name for field in row._meta.get_fields()}
        return WorkingCopyFault(fault, row, column if column in columns else None)

    def _row_at(self, path: str) -> tuple[Row | None, str]:
        """The row that a path of either document is in, and what of the path is below it."""
        for route in self.routes:
            if path == render_path(("router", "model_routes", route.alias)):
                return route, ""
        place = _PLACE.fullmatch(path)
        if place is None:
            table, _, key = path.partition(".")
            return self.settings, key if table in ("server", "router") else table
        rows: Sequence[NamedRow] = getattr(self, place["kind"])
        row = rows[int(place["number"])]
        if place["member"] is not None:
            row = self.members[row.pk][int(place["member"])]
        return row, place["below"] or ""


def publish(*, actor: str, through: Through) -> tuple[RouterSnapshot, bool]:
    """Write the working copy as TOML, once, and capture those bytes; nothing is activated.

    The row, and whether it is a new one: then an audit entry is stored with it. Raises SnapshotError for a
    working copy with faults, and nothing is stored.
    """
    config, topology = WorkingCopy.read().render()
    source = RouterSnapshot.Source.PUBLICATION
    return capture(config, topology, None, source=source, actor=actor, through=through)


def tier_faults(tier: Tier, members: Iterable[ReplicaMember]) -> tuple[Fault, ...]:
    """What is wrong with a tier together with its members, saved or not; paths are below the tier."""
    return table_faults("tier", tier.as_table(members))


def load_snapshot_into_working_copy(row: RouterSnapshot) -> None:
    """Replace the whole working copy by what a snapshot says. Raises SnapshotError, with nothing changed."""
    snapshot = load(row)
    replace_working_copy(snapshot.config, snapshot.topology)


def replace_working_copy(config: RouterConfig, topology: Topology | None) -> None:
    """Replace the whole working copy by these values, in one transaction."""
    document = config_document(config)
    router = cast(dict[str, Any], document["router"])
    places = {} if topology is None else topology_document(topology)
    with transaction.atomic():
        for model in (Tier, PurposeModel, AudioRoute, Host):
            model.objects.all().delete()
        settings = {key: value for key, value in router.items() if key in FIELD_RULES["router"]}
        server = cast(dict[str, Any], document.get("server", {}))
        RouterSettings(
            pk=RouterSettings.SINGLETON, **settings, **server, topology_id=places.get("id", "")
        ).save()
        tiers = _create(Tier, [_without_nested(table) for table in router["tiers"]])
        for table in router["tiers"]:
            _create(ReplicaMember, table.get("replicas", ()), tier=tiers[table["id"]])
        ModelRoute.objects.bulk_create(
            ModelRoute(alias=alias, tier=tiers[tier_id], position=number)
            for number, (alias, tier_id) in enumerate(router.get("model_routes", {}).items())
        )
        _create(PurposeModel, router.get("purpose_models", ()))
        _create(AudioRoute, router.get("audio_routes", ()))
        hosts = _create(Host, _tables(places, "hosts"))
        roles = _create(
            GpuRole, [{**table, "host": hosts[table["host"]]} for table in _tables(places, "gpu_roles")]
        )
        _create(
            Resource,
            [
                {**table, "host": hosts[table["host"]], "gpu_role": roles.get(table.get("gpu_role", ""))}
                for table in _tables(places, "resources")
            ],
        )


def _tables(document: Table, key: str) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], document.get(key, []))


def _without_nested(tier: dict[str, Any]) -> dict[str, Any]:
    """A tier's table as its row has it: the identity's keys are columns, the members rows."""
    table = {key: value for key, value in tier.items() if key not in ("replica_identity", "replicas")}
    return {**table, **tier.get("replica_identity", {})}


def _create(model: type[Named], tables: Iterable[dict[str, Any]], **shared: Any) -> dict[str, Named]:
    """A row for each table, in that order; by id."""
    rows = [
        model(
            **{model.COLUMNS.get(key, key): value for key, value in table.items()}, position=number, **shared
        )
        for number, table in enumerate(tables)
    ]
    return {str(row.identifier): row for row in model._default_manager.bulk_create(rows)}


def _canonical(*documents: Table | None) -> str:
    return json.dumps(documents, sort_keys=True)
