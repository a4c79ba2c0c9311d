"""The composition root: builds and owns the one ledger, its router and what records its decisions.

A process that serves requests has one `Runtime`. `start` takes the ledger lock, or stands by for it while
every data-plane request gets a 503; configuration, snapshot and intents are read after the lock is held.
Nothing here runs at import, and no thread exists before `start`.
"""

import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import django.db
from django.conf import settings
from django.core.management import call_command
from django.db import close_old_connections

from admission import intents
from admission.intent_document import IntentError
from anvil_site.boot import StartRefused
from anvil_site.ownership import LedgerLock
from routing import audit, keys, publishing, transitions
from routing.access import is_loopback_bind
from routing.config import RouterConfig, Tier, unset_auth_envs
from routing.models import RouterSnapshot
from routing.records import DecisionRecord
from routing.router import PressureSource, Router
from routing.router import bind as bind_router
from routing.snapshot import SnapshotError, validate_files
from routing.views import DataPlane, Limits
from telemetry import process
from telemetry.decisions import DecisionLog, JsonlWriter, LineLogger
from telemetry.entries import EntryWriter
from telemetry.evidence import ProcessEvidence
from telemetry.log_handler import site_writer
from telemetry.pressure import ReplicaPressureCache
from telemetry.troubles import Troubles
from telemetry.watchdog import Watchdog
from telemetry.writer import BoundedWriter

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

logger = logging.getLogger("anvil.runtime")

STANDBY_POLL: Final = 0.25
"""Seconds between two attempts of a standing-by process at the lock."""

HOUSEKEEPING_SECONDS: Final = 1.0
LAST_USED_SECONDS: Final = 15.0
"""How far behind the stored last use of a key may be; so often at most does it cost a write."""


class Runtime:
    """One process's parts, from start to stop."""

    def __init__(self, *, data_dir: Path, auth: bool) -> None:
        self._data_dir = data_dir
        self._lock = LedgerLock(data_dir)
        self._stopping = threading.Event()
        self._line_logger = LineLogger(logging.getLogger("anvil.decisions"))
        self._entries = EntryWriter(retention=settings.ANVIL_DECISION_RETENTION)
        self.log = DecisionLog(sinks=[self._hand_on])
        self._jsonl: JsonlWriter | None = None
        self._data_plane: DataPlane | None = None
        self.evidence = ProcessEvidence(self.log)
        self._watchdog = Watchdog()
        self._troubles = Troubles()
        self.evidence.writers = self._writers
        self.evidence.management_refusals = audit.refusals
        self.router = Router(
            evidence=self.evidence,
            pressure_factory=make_pressure,
            auth=auth,
            own_hosts=settings.ALLOWED_HOSTS,
        )
        self.router.on_install.append(self._follow)

    @property
    def max_body_bytes(self) -> int:
        """The largest request body that is read."""
        return int(settings.ANVIL_MAX_BODY_BYTES)

    @property
    def body_budget(self) -> int:
        """Bytes that all request bodies being read or served may take together."""
        return int(settings.ANVIL_BODY_BUDGET)

    @property
    def body_silence(self) -> float:
        """Seconds for which a body may be silent."""
        return float(settings.ANVIL_BODY_SILENCE)

    @property
    def body_min_rate(self) -> int:
        """Bytes a second at which a body has to come on average."""
        return int(settings.ANVIL_BODY_MIN_RATE)

    def predecessor_owns_ledger(self) -> bool:
        """Whether a worker of the same master has the lock: it is leaving, and worth waiting for."""
        if self._lock.try_acquire():
            return False
        owner = self._lock.owner()
        return owner is not None and owner[1] == os.getppid()

    def data_plane(self, fallback: "WSGIApplication | None" = None) -> DataPlane:
        """The WSGI application over this runtime; ``fallback``, when given, answers what is not its own."""
        if self._data_plane is None:
            limits = Limits(
                max_body_bytes=settings.ANVIL_MAX_BODY_BYTES, max_concurrency=settings.ANVIL_MAX_CONCURRENCY
            )
            self._data_plane = plane = DataPlane(self.router, limits=limits)
            self.evidence.server.places = lambda: (plane.places.taken, plane.places.limit)
        if fallback is not None:
            self._data_plane.fallback = fallback
        return self._data_plane

    def start(self) -> None:
        """Begin to serve: as the owner when the lock is free, else standing by. Raises StartRefused."""
        if not self.router.ring.enabled and not is_loopback_bind(settings.ANVIL_BIND):
            raise StartRefused("ANVIL_AUTH=off needs a loopback address in ANVIL_BIND")
        bind_router(self.router)
        process.bind(self.evidence)
        if self._lock.try_acquire():
            self._own()
            return
        logger.warning("another process owns the ledger: standing by, requests are answered 503")
        threading.Thread(target=self._stand_by, name="anvil-standby", daemon=True).start()

    def stop(self) -> None:
        """End every thread and give the lock back. Idempotent; waits a few seconds at most."""
        self._stopping.set()
        self.router.close()
        self.evidence.live.stop()
        for writer in (self._line_logger, self._entries, self._jsonl):
            if writer is not None:
                writer.stop(timeout=2.0)
        if self.router.owns_ledger:
            self._write_back_last_used()
        self._lock.release()

    def _own(self) -> None:
        # Only the owner migrates, so two processes never do at once.
        call_command("migrate", verbosity=0, interactive=False)
        self._install_first()
        intents.forget_promotions()
        try:
            # Without a configuration, too: who repairs a row wants to know of it before anything opens.
            intents.load()
        except IntentError as error:
            raise StartRefused(f"the stored intents are not valid: {error}") from None
        row = publishing.active_row()
        if row is None:
            logger.warning("no configuration is active: install one (anvil router install-config)")
        else:
            try:
                snapshot = publishing.load(row)
            except SnapshotError as error:
                raise StartRefused(f"the active snapshot is not valid: {error.code}") from None
            transitions.install(self.router, snapshot, snapshot_id=row.pk)
        keys.refresh(self.router)
        self._line_logger.start()
        self._entries.start()
        self.evidence.live.start()
        threading.Thread(target=self._keep_house, name="anvil-housekeeping", daemon=True).start()
        threading.Thread(target=self._keep_rows, name="anvil-rows", daemon=True).start()
        threading.Thread(target=self._reap, name="anvil-reaper", daemon=True).start()
        self.router.owns_ledger = True
        logger.info("this process owns the ledger")

    def _install_first(self) -> None:
        """On the first start, install the documents that the environment names."""
        config: Path | None = settings.ANVIL_CONFIG
        if config is None or publishing.active_row() is not None:
            return
        try:
            snapshot = validate_files(config, settings.ANVIL_TOPOLOGY, settings.ANVIL_TOPOLOGY_OVERLAY)
        except SnapshotError as error:
            what = f"{error} `anvil router check` shows each fault"
            if not os.access(config, os.R_OK):
                what = "the file can't be read"
            raise StartRefused(f"ANVIL_CONFIG is refused ({error.code}): {what}") from None
        publishing.install_into_empty(snapshot, source=RouterSnapshot.Source.FIRST_START, actor="start")

    def _stand_by(self) -> None:
        while not self._stopping.wait(STANDBY_POLL):
            if self._lock.try_acquire():
                try:
                    self._own()
                except Exception:
                    logger.exception("taking over the ledger failed")
                    self._lock.release()
                    continue
                finally:
                    close_old_connections()
                return

    def _keep_house(self) -> None:
        while not self._stopping.wait(HOUSEKEEPING_SECONDS):
            self.keep_house_once()

    def keep_house_once(self) -> None:
        """What is done once a second, in memory alone: a database that is locked must not make a gap.

        A step that fails is told of, and the others are done all the same.
        """
        for step in (
            self.router.pool.sweep,
            self._refresh_pressure,
            self._sample,
            self._watch,
            self._tell,
        ):
            try:
                step()
            except Exception:
                logger.exception("a step of the housekeeping failed")

    def _refresh_pressure(self) -> None:
        """Have what is due read, so that the first request after a pause finds fresh pressure."""
        active, pressure = self.router.active, self.router.pressure
        if active is None or pressure is None:
            return
        for tier in active.config.tiers:
            if tier.strategy == "capacity":
                pressure.snapshot(tier.id)

    def _sample(self) -> None:
        self.evidence.sample(self.router)

    def _watch(self) -> None:
        self._watchdog.run_once(self.router, self.evidence)

    def _tell(self) -> None:
        self._troubles.run_once(self.router, self.evidence)

    def _keep_rows(self) -> None:
        while not self._stopping.wait(LAST_USED_SECONDS):
            self._write_back_last_used()

    def _write_back_last_used(self) -> None:
        try:
            keys.write_back_last_used(self.router)
        except django.db.Error:
            logger.warning("when keys were last used could not be stored")
        finally:
            close_old_connections()

    def _reap(self) -> None:
        while not self._stopping.is_set():
            if self.router.active is None:
                self._stopping.wait(1.0)
            elif self.router.ledger.reap(1.0):
                logger.error("a lease was lost and has been given back")

    def _hand_on(self, record: DecisionRecord) -> None:
        self._line_logger.offer(record)
        self._entries.offer(record)
        jsonl = self._jsonl
        if jsonl is not None:
            jsonl.offer(record)

    def _follow(self, config: RouterConfig) -> None:
        """What is the process's own of a configuration that has become active."""
        self._write_jsonl(config.server.decision_log_path)
        self.evidence.live.reconfigure(config.tiers)
        for place in unset_auth_envs(config, os.environ):
            logger.warning("the variable that %s names is not set: no secret is sent or taken there", place)

    def _write_jsonl(self, path: str | None) -> None:
        """Write decisions to ``path`` from now on; the file before it still gets what is queued for it."""
        target = None if path is None else self._data_dir / path
        previous = self._jsonl
        if target == (None if previous is None else previous.path):
            return
        writer = None if target is None else JsonlWriter(target)
        if writer is not None:
            writer.start()
        self._jsonl = writer
        if previous is not None:
            previous.stop(timeout=0.0)

    def _writers(self) -> dict[str, BoundedWriter[Any]]:
        """Who writes evidence to slow places, by the word that names it in metrics."""
        writers: dict[str, BoundedWriter[Any] | None] = {
            "lines": self._line_logger,
            "table": self._entries,
            "jsonl": self._jsonl,
            "log": site_writer(),
        }
        return {name: writer for name, writer in writers.items() if writer is not None}


def make_pressure(tiers: tuple[Tier, ...], previous: PressureSource | None) -> PressureSource:
    """Pressure of ``tiers``; unchanged members keep their samples."""
    if isinstance(previous, ReplicaPressureCache):
        return previous.successor(tiers)
    return ReplicaPressureCache(tiers)


_runtime: Runtime | None = None


def get_runtime() -> Runtime:
    """This process's runtime, built from the settings when first asked for; not started."""
    global _runtime
    if _runtime is None:
        _runtime = Runtime(data_dir=settings.ANVIL_DATA, auth=settings.ANVIL_AUTH)
    return _runtime
