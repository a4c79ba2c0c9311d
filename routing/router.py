"""What this process routes with: keys, ledger, readiness, connections and the active configuration.

One `Router` lives as long as its process. `install` makes a validated snapshot the active one, the first time
and at every change: the ledger's states, probe results and pressure samples of what did not change carry
over, so that its traffic does not notice. Whoever serves people or programs asks `live()` for it.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypedDict

from admission.core import AdmissionError, MemberScope, TierAdmission, TierScope
from admission.replica_scheduler import ReplicaPressure
from routing.access import LOOPBACK_HOSTS, Key, KeyRing
from routing.activation_plan import plan_activation
from routing.availability import HttpHealthAvailability, targets_from_config
from routing.config import RouterConfig, Tier
from routing.dialects.base import JSON, Dialect
from routing.gateway import Caller, Evidence, Gateway, Overtaken, Reply
from routing.operations import Operations
from routing.probes import Transport
from routing.relay import Dispatch, StopSignal
from routing.snapshot import ValidatedSnapshot
from routing.upstream import ConnectionPool

Intent = tuple[str, str | None, str]
"""A quiesced scope: tier id, member id or None, reason."""


class PressureSource(Protocol):
    """The owner of pressure samples for the capacity tiers it was made for."""

    def snapshot(self, tier_id: str) -> Mapping[str, ReplicaPressure]: ...

    def peek(self, tier_id: str) -> Mapping[str, ReplicaPressure]: ...

    def close(self) -> None: ...


PressureFactory = Callable[[tuple[Tier, ...], PressureSource | None], PressureSource]
"""Makes the source for these capacity tiers; samples of unchanged members carry over from the old one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """The configuration that is being served, and which stored snapshot it came from."""

    snapshot_id: int
    snapshot: ValidatedSnapshot
    gateway: Gateway

    @property
    def config(self) -> RouterConfig:
        return self.snapshot.config


class Router:
    """The data plane's owner. Threads of its own exist between the first `install` and `close` only."""

    def __init__(
        self,
        *,
        evidence: Evidence,
        pressure_factory: PressureFactory,
        auth: bool = True,
        own_hosts: Collection[str] = LOOPBACK_HOSTS,
        environ: Mapping[str, str] = os.environ,
        probe_transport: Transport | None = None,
    ) -> None:
        self.evidence = evidence
        self.ring = KeyRing(enabled=auth, own_hosts=own_hosts)
        self.pool = ConnectionPool()
        self.operations = Operations()
        self.stopping = StopSignal()
        self.owns_ledger = False
        self.draining = False
        self.active: Active | None = None
        self.on_install: list[Callable[[RouterConfig], None]] = []
        """Told of each configuration once it is active; must not raise."""
        self._ledger: TierAdmission | None = None
        self._availability: HttpHealthAvailability | None = None
        self._pressure: PressureSource | None = None
        self._pressure_factory = pressure_factory
        self._environ = environ
        self._probe_transport = probe_transport
        self._swap = threading.Lock()

    @property
    def gateway(self) -> Gateway | None:
        """The path under the active configuration; None before the first `install`."""
        active = self.active
        return active.gateway if active is not None else None

    @property
    def ledger(self) -> TierAdmission:
        """The one ledger. Raises RuntimeError before the first `install`."""
        if self._ledger is None:
            raise RuntimeError("no configuration is active")
        return self._ledger

    @property
    def availability(self) -> HttpHealthAvailability:
        """Readiness of every target. Raises RuntimeError before the first `install`."""
        if self._availability is None:
            raise RuntimeError("no configuration is active")
        return self._availability

    @property
    def pressure(self) -> PressureSource | None:
        """The pressure of capacity tiers; None when no capacity tier is configured."""
        return self._pressure

    def not_ready_reason(self) -> str | None:
        """Why ``/readyz`` is down, in one fixed word; None when requests are being served."""
        if not self.owns_ledger:
            return "not_ledger_owner"
        if self.draining:
            return "draining"
        if self.active is None or self._availability is None:
            return "not_configured"
        return None if self._availability.first_round_complete else "first_probes_pending"

    def handle(
        self, dialect: Dialect, body: bytes, caller: Caller, *, content_type: str = JSON
    ) -> Reply | Dispatch | None:
        """Serve one request under the configuration that is active now (see `Gateway.handle`).

        A request that meets a swap half-way finds the ledger ahead of its gateway; nothing was reserved or
        sent then, so it starts again under the new one.
        """
        gateway = self.gateway
        while gateway is not None:
            try:
                return gateway.handle(dialect, body, caller, content_type=content_type)
            except Overtaken:
                with self._swap:
                    gateway = self.gateway
            except AdmissionError:
                with self._swap:
                    latest = self.gateway
                if latest is gateway:
                    raise
                gateway = latest
        raise RuntimeError("no configuration is active")

    def install(
        self, snapshot: ValidatedSnapshot, *, snapshot_id: int, intents: Iterable[Intent] = ()
    ) -> None:
        """Make ``snapshot`` the active configuration; ``intents`` hold before anything new is acquired.

        Whatever it raises, it raises before anything has changed.
        """
        config, held = snapshot.config, tuple(intents)
        capacity_tiers = tuple(tier for tier in config.tiers if tier.strategy == "capacity")
        with self._swap:
            previous, previous_pressure = self.gateway, self._pressure
            is_first = self._ledger is None or self._availability is None
            ledger = self._ledger or TierAdmission(_scopes(config), quiesced=held)
            availability = self._availability or self._new_availability(config)
            pressure = self._pressure_factory(capacity_tiers, previous_pressure) if capacity_tiers else None
            try:
                gateway = Gateway(
                    config,
                    ledger=ledger,
                    availability=availability,
                    pressure=pressure.snapshot if pressure is not None else _no_pressure,
                    pool=self.pool,
                    evidence=self.evidence,
                    environ=self._environ,
                )
                if previous is not None:
                    previous.overtaken = _changed_tiers(previous.config, config)
                if not is_first:
                    ledger.reconfigure(_scopes(config), quiesced=held)
                    availability.reconfigure(targets_from_config(config), **_probe_settings(config))
            except BaseException:
                if previous is not None:
                    previous.overtaken = frozenset()
                if pressure is not None:
                    pressure.close()
                raise
            self._ledger, self._availability, self._pressure = ledger, availability, pressure
            self.active = Active(snapshot_id=snapshot_id, snapshot=snapshot, gateway=gateway)
            auth_env = config.server.auth_env
            self.ring.set_bootstrap(self._environ.get(auth_env) if auth_env is not None else None)
            availability.start()
        if previous_pressure is not None and previous_pressure is not pressure:
            previous_pressure.close()
        for listener in self.on_install:
            listener(config)

    def _new_availability(self, config: RouterConfig) -> HttpHealthAvailability:
        availability = HttpHealthAvailability(
            targets_from_config(config),
            **_probe_settings(config),
            transport=self._probe_transport,
            environ=self._environ,
        )
        availability.use_quiesced(self.quiesced_scopes)
        return availability

    def set_keys(self, keys: Iterable[Key]) -> None:
        """Make ``keys`` the whole ring, beside the bootstrap token of the active configuration."""
        self.ring.replace(keys)

    def quiesced_scopes(self) -> frozenset[tuple[str, str | None]]:
        """Every quiesced scope: (tier id, None) for a tier, (tier id, member id) for a member."""
        if self._ledger is None:
            return frozenset()
        scopes: set[tuple[str, str | None]] = set()
        for snapshot in self._ledger.snapshots():
            if snapshot.state == "quiesced":
                scopes.add((snapshot.tier_id, None))
            for member in snapshot.members:
                if member.state == "quiesced":
                    scopes.add((snapshot.tier_id, member.member_id))
        return frozenset(scopes)

    def close(self) -> None:
        """Stop probes and collectors and close idle connections. Running exchanges are not touched."""
        if self._availability is not None:
            self._availability.stop(timeout=1.0)
        if self._pressure is not None:
            self._pressure.close()
        self.pool.close()


class _ProbeSettings(TypedDict):
    interval: float
    timeout: float
    max_bytes: int


def _probe_settings(config: RouterConfig) -> _ProbeSettings:
    settings = config.router
    return _ProbeSettings(
        interval=settings.availability_probe_interval,
        timeout=settings.availability_probe_timeout,
        max_bytes=settings.availability_probe_max_bytes,
    )


def _scopes(config: RouterConfig) -> list[TierScope]:
    return [admission_scope(tier) for tier in config.tiers]


def admission_scope(tier: Tier) -> TierScope:
    """What the ledger needs to know of a tier."""
    return TierScope(
        tier_id=tier.id,
        max_concurrency=tier.admission_ceiling,
        strategy=tier.strategy,
        members=tuple(
            MemberScope(member_id=member.id, max_concurrency=member.max_concurrency)
            for member in tier.replicas
        ),
    )


def _changed_tiers(old: RouterConfig, new: RouterConfig) -> frozenset[str]:
    """The tiers to which a request that was routed under ``old`` must not be sent under ``new``."""
    changes = plan_activation(old, new).changes
    return frozenset(change.scope.tier_id for change in changes if change.needs_drain or change.starts_cold)


def _no_pressure(tier_id: str) -> None:
    """Without a capacity tier there is no pressure to read."""


_live: Router | None = None


def bind(router: Router | None) -> None:
    """Make ``router`` the one that this process's views and commands talk to."""
    global _live
    _live = router


def live() -> Router:
    """The router of this process. Raises RuntimeError where none was started."""
    if _live is None:
        raise RuntimeError("no router runs in this process")
    return _live
