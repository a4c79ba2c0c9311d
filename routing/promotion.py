"""Promotion: move a direct tier to another validated resource of the topology, and back when that fails.

A thin journal over activation. Two complete configurations are kept: the one that was served (``rollback``),
and the same bytes with that tier's ``base_url`` changed (``promoted``). Going from one to the other is an
activation: the tier is quiesced with the reason ``promotion``, drained, switched, its exact identity is
verified, it is readmitted; and when the identity fails, it is taken back at once.

The journal's row is written before anything is done, each step as it ends. Which configuration is served,
only the active pointer says: it moves in one transaction, so a process that is killed at any point starts
with one of the two, the tier open and in need of a first probe of its own. What the row lacks then is an
outcome, and `resume` or `roll_back` gives it one.

Replica tiers have no such shortcut: the guard is asked about the affected tier in both configurations at each
way in, before anything is touched, and again before each way back.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NoReturn

import django.db
from django.db import connections, transaction
from django.utils import timezone

from admission.core import UnknownScopeError
from admission.identifiers import PROMOTION_REASON
from routing import activation, audit, guard, publishing
from routing.activation import Step
from routing.audit import Through
from routing.config import RouterConfig, normalise_url
from routing.editing import EditError, with_base_url
from routing.models import Promotion, RouterSnapshot
from routing.orders import DEFAULT_DRAIN_TIMEOUT
from routing.refusals import SENTENCES, Refused, not_ledger_owner
from routing.snapshot import SnapshotError, ValidatedSnapshot, validate_snapshot

if TYPE_CHECKING:
    from routing.router import Active, Router

logger = logging.getLogger("anvil.promotion")

MAX_STEPS: Final = 500
"""Steps that a journal keeps; of one that is resumed over and over, the newest."""

Serving = Literal["promoted", "rollback", "neither"]
"""Which of a promotion's two configurations is active."""

_STATUS: Final[Mapping[str, int]] = {
    "promotion_unverifiable": 409,
    "unknown_resource": 404,
    "resource_without_endpoint": 409,
    "resource_in_use": 409,
    "resource_serves_already": 409,
    "config_not_editable": 422,
    "promotion_in_progress": 409,
    "promotion_unfinished": 409,
    "no_stopped_promotion": 409,
    "promotion_superseded": 409,
    "promotion_unverified": 409,
    "verification_failed": 409,
    "promotion_not_persisted": 503,
    "promotion_not_recorded": 503,
}
_TAKEN_BACK: Final = "The tier could not be verified at its new place and is back at its old one."
"""What ``verification_failed`` is to a promotion."""

NEXT_STEPS: Final[Mapping[Serving, str]] = {
    "rollback": (
        "The tier is at its old place. `anvil promote --resume` goes on; `anvil promote --rollback` gives the"
        " promotion up."
    ),
    "promoted": (
        "The tier is at its new place, not verified by the promotion. `anvil promote --resume` verifies it"
        " there; `anvil promote --rollback` takes it back."
    ),
    "neither": (
        "Another configuration has been activated since. `anvil promote --rollback` closes the record and"
        " changes nothing."
    ),
}
"""What an operator can do about a stopped promotion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A promotion without an outcome at which nobody is at work, and what to do next."""

    promotion: Promotion
    serving: Serving
    next_step: str


# Reading -----------------------------------------------------------------------------------------------


def stopped(router: "Router") -> Stopped | None:
    """The promotion that was stopped half-way, if there is one."""
    row = None if router.operations.promoting.locked() else _unfinished()
    if row is None:
        return None
    serving = _serving(router, row)
    return Stopped(promotion=row, serving=serving, next_step=NEXT_STEPS[serving])


def describe(router: "Router", row: Promotion, *, at_work: bool | None = None) -> dict[str, object]:
    """A promotion for people and programs; ``serving`` and ``next_step`` of one that was stopped.

    ``at_work`` says whether somebody is, where that is known better than here.
    """
    if at_work is None:
        at_work = router.operations.promoting.locked()
    state = row.outcome or ("running" if at_work else "stopped")
    serving = _serving(router, row) if state == "stopped" else None
    return {
        "object": "promotion",
        "id": row.pk,
        "tier_id": row.tier_id,
        "resource_id": row.resource_id,
        "state": state,
        "code": row.code or None,
        "promoted_snapshot_id": row.promoted_id,
        "rollback_snapshot_id": row.rollback_id,
        "serving": serving,
        "next_step": None if serving is None else NEXT_STEPS[serving],
        "actor": row.actor,
        "through": row.through,
        "drain_timeout": row.drain_timeout,
        "started_at": row.started_at.isoformat(),
        "ended_at": None if row.ended_at is None else row.ended_at.isoformat(),
        "steps": row.steps,
    }


def preview(router: "Router", tier_id: str, resource_id: str) -> activation.Preview:
    """Say what a promotion would change and wait for; changes nothing. Raises Refused as `promote` does."""
    wanted = _wanted(router, tier_id, resource_id)
    if router.operations.promoting.locked():
        _refuse("promotion_in_progress")
    _refuse_unfinished(router, _unfinished())
    return activation.preview_of(router, wanted.promoted)


# Verbs -------------------------------------------------------------------------------------------------


def promote(
    router: "Router",
    tier_id: str,
    resource_id: str,
    *,
    actor: str,
    through: Through,
    drain_timeout: float = DEFAULT_DRAIN_TIMEOUT,
) -> Promotion:
    """Move a direct tier to ``resource_id``, in this thread; the promotion, with its outcome.

    ``drain_timeout`` (seconds, over 0, at most 3,600) bounds the wait for the tier's running requests. Raises
    Refused, with the ``promotion`` beside the error once there is one:

    409  replica_lifecycle_unsupported, replica_lifecycle_configuration_unavailable, and what else
         `_STATUS` has of the tier and the resource        nothing was touched
    409  not_drained, activation_in_progress, promotion_superseded; 503 activation_not_persisted
                                                           nothing is changed (any more)
    409  verification_failed                               the tier is back at its old place
    503  not_ledger_owner, promotion_not_persisted         nothing was touched
    503  restore_not_persisted, promotion_not_recorded     the promotion is stopped
    """
    with audit.telling_refusals("promote", actor=actor, through=through):
        wanted = _wanted(router, tier_id, resource_id)
        with _only_one(router):
            row = _begin(router, wanted, tier_id, resource_id, actor, through, drain_timeout)
            return _Run(router, row, actor, through, drain_timeout).first()


def resume(
    router: "Router", *, actor: str, through: Through, drain_timeout: float | None = None
) -> Promotion:
    """Carry the stopped promotion on to its new place.

    Raises Refused as `promote`, or no_stopped_promotion; where nothing has changed it is still stopped.
    """
    with audit.telling_refusals("resume_promotion", actor=actor, through=through):
        row = check(router)
        with _only_one(router):
            return _Run(router, _still_stopped(row), actor, through, drain_timeout).resume()


def roll_back(
    router: "Router", *, actor: str, through: Through, drain_timeout: float | None = None
) -> Promotion:
    """Take the stopped promotion back to its old place.

    Raises Refused as `promote`, or no_stopped_promotion; the promotion is still stopped then.
    """
    with audit.telling_refusals("roll_back_promotion", actor=actor, through=through):
        row = check(router)
        with _only_one(router):
            return _Run(router, _still_stopped(row), actor, through, drain_timeout).roll_back()


def in_background(verb: Callable[[], Promotion]) -> None:
    """Carry a verb out in a thread of its own, for those who watch the journal: it holds every outcome.

    Who calls this has previewed or checked: a refusal that comes before the journal is told there.
    """

    def run() -> None:
        try:
            verb()
        except Refused:
            # Told already; the journal has it.
            return
        except Exception:
            logger.exception("a promotion failed")
        finally:
            connections.close_all()

    threading.Thread(target=run, name="anvil-promotion", daemon=True).start()


# Before anything is touched ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A promotion that may begin: what is active, and the whole configuration to go to."""

    active: "Active"
    promoted: ValidatedSnapshot


def _wanted(router: "Router", tier_id: str, resource_id: str) -> _Wanted:
    """Read and compute only. Raises Refused."""
    if not router.owns_ledger:
        raise not_ledger_owner()
    active = router.active
    _refuse_replica_tiers(tier_id, None if active is None else active.config)
    assert active is not None
    snapshot, tier = active.snapshot, active.config.tier(tier_id)
    if not (tier.model_identity or tier.metadata_source == "upstream"):
        _refuse("promotion_unverifiable")
    resource = None if snapshot.topology is None else snapshot.topology.resource(resource_id)
    if resource is None:
        _refuse("unknown_resource")
    if resource.endpoint is None:
        _refuse("resource_without_endpoint")
    if any(member.resource_id == resource_id for one in active.config.tiers for member in one.replicas):
        _refuse("resource_in_use")
    if normalise_url(resource.endpoint) == normalise_url(tier.base_url):
        _refuse("resource_serves_already")
    try:
        config = with_base_url(snapshot.config_bytes, tier_id, resource.endpoint)
    except EditError:
        raise _refusal("config_not_editable") from None
    try:
        promoted = validate_snapshot(config, snapshot.topology_bytes, snapshot.overlay_bytes)
    except SnapshotError as error:
        raise Refused(422, error.code, str(error)) from None
    _refuse_replica_tiers(tier_id, promoted.config)
    return _Wanted(active=active, promoted=promoted)


def check(router: "Router") -> Promotion:
    """The promotion that `resume` and `roll_back` would act on; touches nothing. Raises Refused."""
    if not router.owns_ledger:
        raise not_ledger_owner()
    row = _unfinished()
    if row is None:
        _refuse("no_stopped_promotion")
    _refuse_replica_tiers(row.tier_id, *_configs(row))
    if router.operations.promoting.locked():
        _refuse("promotion_in_progress")
    return row


def _refuse_replica_tiers(tier_id: str, *configs: RouterConfig | None) -> None:
    for config in configs:
        try:
            guard.refuse_replica_tiers(config, (tier_id,))
        except guard.ReplicaLifecycleError as error:
            raise Refused(409, error.code, str(error)) from None


def _configs(row: Promotion) -> tuple[RouterConfig | None, RouterConfig | None]:
    """Both configurations of a promotion; None for one whose bytes are refused by now."""
    return _config(row.promoted), _config(row.rollback)


def _config(row: RouterSnapshot) -> RouterConfig | None:
    try:
        return publishing.load(row).config
    except SnapshotError:
        return None


# The journal -------------------------------------------------------------------------------------------


def _unfinished() -> Promotion | None:
    return Promotion.objects.select_related("promoted", "rollback").filter(outcome="").first()


def _refuse_unfinished(router: "Router", row: Promotion | None) -> None:
    """A promotion that was stopped comes first, unless what has been activated since has overtaken it."""
    if row is not None and _serving(router, row) != "neither":
        _refuse("promotion_unfinished", promotion=describe(router, row, at_work=False))


def _still_stopped(row: Promotion) -> Promotion:
    """The row as it is, now that nobody else can be at work at it."""
    if not Promotion.objects.filter(pk=row.pk, outcome="").exists():
        _refuse("no_stopped_promotion")
    return row


def _serving(router: "Router", row: Promotion) -> Serving:
    active_id = router.active.snapshot_id if router.active is not None else _pointed_at()
    if active_id == row.promoted_id:
        return "promoted"
    return "rollback" if active_id == row.rollback_id else "neither"


def _pointed_at() -> int | None:
    row = publishing.active_row()
    return None if row is None else row.pk


def _begin(
    router: "Router",
    wanted: _Wanted,
    tier_id: str,
    resource_id: str,
    actor: str,
    through: Through,
    drain_timeout: float,
) -> Promotion:
    """Store both configurations and the row of the journal, all or nothing."""
    snapshot = wanted.promoted
    try:
        with transaction.atomic(durable=True):
            left = _unfinished()
            _refuse_unfinished(router, left)
            if left is not None:
                _store_outcome(left, Promotion.Outcome.SUPERSEDED)
            promoted, _ = publishing.capture(
                snapshot.config_bytes,
                snapshot.topology_bytes,
                snapshot.overlay_bytes,
                source=RouterSnapshot.Source.PROMOTION,
                actor=actor,
            )
            return Promotion.objects.create(
                tier_id=tier_id,
                resource_id=resource_id,
                promoted=promoted,
                rollback=RouterSnapshot.objects.get(pk=wanted.active.snapshot_id),
                drain_timeout=drain_timeout,
                actor=actor,
                through=through,
                steps=[_entry("promote", "begun")],
            )
    except django.db.Error:
        raise _refusal("promotion_not_persisted") from None


def _store_outcome(row: Promotion, outcome: Promotion.Outcome, *, code: str = "") -> None:
    """Give a promotion its outcome. Raises django.db.Error, and it has none."""
    ended_at = timezone.now()
    Promotion.objects.filter(pk=row.pk).update(outcome=outcome, code=code, ended_at=ended_at, steps=row.steps)
    row.outcome, row.code, row.ended_at = outcome, code, ended_at


def _entry(step: str, outcome: str) -> dict[str, str]:
    return {"at": timezone.now().isoformat(), "step": step, "outcome": outcome}


@contextmanager
def _only_one(router: "Router") -> Iterator[None]:
    if not router.operations.promoting.acquire(blocking=False):
        _refuse("promotion_in_progress")
    try:
        yield
    finally:
        router.operations.promoting.release()


# At work -----------------------------------------------------------------------------------------------


class _Run:
    """One way forward or back of a promotion, by whoever holds the lock."""

    def __init__(
        self, router: "Router", row: Promotion, actor: str, through: Through, drain_timeout: float | None
    ) -> None:
        self._router = router
        self._row = row
        self._actor = actor
        self._through = through
        self._drain_timeout = row.drain_timeout if drain_timeout is None else drain_timeout
        self._configs = _configs(row)
        self._is_verified = False

    def first(self) -> Promotion:
        with self._telling():
            return self._forward(is_first=True)

    def resume(self) -> Promotion:
        with self._telling():
            self._note("resume", self._serving)
            return self._forward(is_first=False)

    def roll_back(self) -> Promotion:
        with self._telling():
            self._note("roll_back", self._serving)
            self._back()
            return self._row

    @property
    def _serving(self) -> Serving:
        return _serving(self._router, self._row)

    def _forward(self, *, is_first: bool) -> Promotion:
        try:
            self._go(self._row.promoted)
        except Refused as refusal:
            # The activation has undone what it had done, or has gone back by itself.
            went_back = refusal.code == "verification_failed"
            if self._serving == "rollback" and (is_first or went_back):
                outcome = Promotion.Outcome.ROLLED_BACK if went_back else Promotion.Outcome.NOT_PROMOTED
                self._finish(outcome, code=refusal.code)
            raise
        fault = self._settle()
        if fault is not None:
            _refuse_replica_tiers(self._row.tier_id, *self._configs)
            self._note("recover", fault)
            self._back(code="verification_failed")
            _refuse("verification_failed")
        self._end(Promotion.Outcome.PROMOTED)
        return self._row

    def _back(self, *, code: str = "") -> None:
        if self._serving == "neither":
            self._end(Promotion.Outcome.SUPERSEDED)
            return
        self._go(self._row.rollback)
        # Without evidence it is back where it was all the same, and its readiness keeps requests away.
        if self._settle() is not None and self._is_held:
            _refuse("promotion_unverified")
        self._end(Promotion.Outcome.ROLLED_BACK, code=code)

    def _go(self, target: RouterSnapshot) -> None:
        """Make ``target`` the active one of the two."""
        self._is_verified = False
        if self._serving == "neither":
            _refuse("promotion_superseded")
        active = self._router.active
        if active is None or active.snapshot_id != target.pk:
            activation.activate(
                self._router,
                target,
                actor=self._actor,
                through=self._through,
                drain_timeout=self._drain_timeout,
                reason=PROMOTION_REASON,
                on_step=self._step,
            )

    def _step(self, step: Step) -> None:
        """Follow an activation, which nobody else can begin meanwhile."""
        self._note(step.name, step.outcome)
        if step.name == "validate" and self._serving == "neither":
            _refuse("promotion_superseded")
        if step.name == "verify":
            self._is_verified = True
            # If it failed, the way back comes next.
            _refuse_replica_tiers(self._row.tier_id, *self._configs)

    @property
    def _is_held(self) -> bool:
        """Whether the tier is quiesced by a promotion, and by nobody else."""
        reading = self._router.ledger.snapshot(self._row.tier_id)
        return reading.state == "quiesced" and reading.reason == PROMOTION_REASON

    def _settle(self) -> str | None:
        """Verify the tier where it is, unless the activation did, and open it if a promotion holds it still.

        Returns why it can't be verified. What somebody else has quiesced stays so.
        """
        if self._is_verified:
            return None
        router, place = self._router, (self._row.tier_id, None)
        since = router.operations.quiesces(place)
        held = self._is_held
        if held:
            router.availability.invalidate(*place)
        result = router.availability.probe_now(*place)
        self._note("verify", result.reason)
        if not result.available:
            return result.reason
        if held:
            with router.operations.opening(place, since=since) as undisturbed:
                if undisturbed:
                    router.ledger.readmit(*place)
            self._note("readmit", "readmitted" if undisturbed else "left_quiesced")
        return None

    # Telling

    def _note(self, step: str, outcome: str) -> None:
        """Add to the journal. A failing database costs the entry: the pointer still says what is served."""
        self._row.steps = [*self._row.steps, _entry(step, outcome)][-MAX_STEPS:]
        try:
            Promotion.objects.filter(pk=self._row.pk).update(steps=self._row.steps)
        except django.db.Error:
            logger.error("a step of promotion %d could not be recorded", self._row.pk)

    def _end(self, outcome: Promotion.Outcome, *, code: str = "") -> None:
        if not self._finish(outcome, code=code):
            _refuse("promotion_not_recorded")

    def _finish(self, outcome: Promotion.Outcome, *, code: str = "") -> bool:
        """Record the outcome; False when that is not possible, and the promotion counts as stopped."""
        row = self._row
        try:
            with transaction.atomic(durable=True):
                _store_outcome(row, outcome, code=code)
                audit.record(
                    actor=self._actor,
                    through=self._through,
                    action="promote",
                    tier_id=row.tier_id,
                    subject=f"resource {row.resource_id}",
                    reason=PROMOTION_REASON,
                    result=outcome,
                )
        except django.db.Error:
            row.outcome, row.code, row.ended_at = "", "", None
            logger.error("the outcome of promotion %d could not be recorded", row.pk)
            return False
        return True

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Show the promotion beside a refusal of it."""
        try:
            yield
        except UnknownScopeError:
            refusal = _refusal("promotion_superseded")
        except Refused as error:
            refusal = error
        else:
            return
        refusal.extra["promotion"] = describe(self._router, self._row, at_work=False)
        raise refusal


def _refusal(code: str, **extra: object) -> Refused:
    text = _TAKEN_BACK if code == "verification_failed" else SENTENCES[code]
    return Refused(_STATUS[code], code, text, extra=extra)


def _refuse(code: str, **extra: object) -> NoReturn:
    raise _refusal(code, **extra)
