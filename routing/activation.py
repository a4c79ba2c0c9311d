"""Activation: make a captured snapshot the configuration that is served, in place and without a cut stream.

    validate   the snapshot's exact bytes, again; a refusal has changed nothing
    quiesce    with a drain timeout: what must be at rest and is open takes no new lease, in memory only
    drain      with a drain timeout: until it holds none
    activate   the pointer moves in one transaction, then the process swaps
    verify     what was quiesced here shows its readiness under the new configuration
    readmit    and opens again, unless somebody else quiesced it meanwhile

Without a drain timeout there are only the first and the fourth, and what is not at rest refuses them. A step
that fails before the pointer moved undoes the earlier ones; a failed verification moves the pointer back to
the previous snapshot and reopens that.

What is quiesced here leaves no stored intent: a process that ends half-way starts with whichever snapshot the
pointer names, its scopes open and in need of a first probe of their own.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NoReturn

from django.db import Error as DatabaseError
from django.db import connections, transaction

from admission.core import AdmissionSnapshot, ScopeConflictError, UnknownScopeError
from admission.intent_document import IntentError
from routing import audit, publishing, transitions
from routing.activation_plan import ActivationPlan, is_closed, is_quiesced, plan_activation, undrained
from routing.audit import Through
from routing.availability import AvailabilityResult
from routing.drains import Drain, DrainOutcome
from routing.models import RouterSnapshot
from routing.operations import Overdue
from routing.refusals import SENTENCES, Refused, not_ledger_owner
from routing.scopes import ScopeId
from routing.snapshot import SnapshotError, ValidatedSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from routing.router import Active, Router

logger = logging.getLogger("anvil.activation")

REASON: Final = "activation"
"""Why a scope is quiesced while an activation brings it to rest, unless it is part of something larger."""

MAX_PROBES_AT_ONCE: Final = 16

_NOT_PERSISTED: Final = (DatabaseError, Overdue, IntentError)
"""What a change of the pointer raises before anything is changed."""

StepName = Literal["validate", "quiesce", "drain", "activate", "verify", "readmit", "reopen", "restore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that was done, to one scope or to the whole, and the fixed word for how it ended."""

    name: StepName
    scope: ScopeId | None = None
    outcome: str

    def as_json(self) -> dict[str, object]:
        scope = {} if self.scope is None else scope_json(self.scope)
        return {"step": self.name, **scope, "outcome": self.outcome}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What an activation would change now; ``not_at_rest`` are the scopes that it has to wait for."""

    plan: ActivationPlan
    not_at_rest: tuple[ScopeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Activated:
    """An activation that went through."""

    snapshot_id: int
    previous_id: int | None
    plan: ActivationPlan
    steps: tuple[Step, ...]


OnStep = Callable[[Step], None]


def preview(router: "Router", row: RouterSnapshot) -> Preview:
    """Validate a snapshot and say what activating it would change and need; changes nothing.

    Raises Refused: 503 when this process does not own the ledger, 422 with the snapshot's code.
    """
    if not router.owns_ledger:
        raise not_ledger_owner()
    return preview_of(router, _validated(row))


def preview_of(router: "Router", candidate: ValidatedSnapshot) -> Preview:
    """As `preview`, of what is not kept as a snapshot; for the process that owns the ledger."""
    active = router.active
    plan = plan_activation(None if active is None else active.config, candidate.config)
    readings = () if active is None else router.ledger.snapshots()
    return Preview(plan=plan, not_at_rest=undrained(plan.must_drain, readings))


def activate(
    router: "Router",
    row: RouterSnapshot,
    *,
    actor: str,
    through: Through,
    drain_timeout: float | None = None,
    reason: str = REASON,
    on_step: OnStep | None = None,
) -> Activated:
    """Activate ``row``, in this thread; see the module for the steps.

    ``drain_timeout`` (seconds, over 0, at most 3,600) bounds the wait for all leases together. ``reason`` is
    the one that a quiesce gives. ``on_step`` is told of each step as it ends. What it raises counts as a
    failure of that step: before the change everything is undone, at ``verify`` what was quiesced stays so,
    and at ``activate`` it must not raise. Raises Refused, with the ``steps`` so far, and ``scopes`` where
    some are at fault, beside the error:

    422  a code of the snapshot contract                    nothing was changed
    409  activation_in_progress, not_drained                nothing is changed (any more)
    409  verification_failed                                the previous snapshot is active again
    503  not_ledger_owner, activation_not_persisted         nothing is changed (any more)
    503  restore_not_persisted                              the new one is active, what failed stays quiesced
    """
    with audit.telling_refusals("activate", actor=actor, through=through), _only_one(router):
        return _Activation(router, row, actor, through, drain_timeout, reason, on_step).run()


class Job:
    """An activation in a thread of its own, for those who watch it."""

    def __init__(self, snapshot_id: int) -> None:
        self.snapshot_id: Final = snapshot_id
        self.steps: tuple[Step, ...] = ()
        self.outcome: Activated | Refused | None = None
        """None while it runs."""
        self._over = threading.Event()

    def wait(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for the end; whether it has come."""
        return self._over.wait(timeout)

    def _add(self, step: Step) -> None:
        self.steps = (*self.steps, step)


def start(
    router: "Router",
    row: RouterSnapshot,
    *,
    actor: str,
    through: Through,
    drain_timeout: float | None = None,
) -> Job:
    """Begin to activate ``row`` and return at once; `latest_job` finds the job again.

    Raises Refused ``activation_in_progress``; what comes later is the job's outcome.
    """
    job = Job(row.pk)

    def run() -> None:
        try:
            with audit.telling_refusals("activate", actor=actor, through=through):
                activation = _Activation(router, row, actor, through, drain_timeout, REASON, job._add)
                job.outcome = activation.run()
        except Refused as refusal:
            job.outcome = refusal
        except Exception:
            logger.exception("an activation failed")
            job.outcome = Refused(500, "activation_failed", "The activation failed.")
        finally:
            router.operations.activating.release()
            job._over.set()
            connections.close_all()

    with audit.telling_refusals("activate", actor=actor, through=through):
        _claim(router)
    try:
        threading.Thread(target=run, name="anvil-activation", daemon=True).start()
    except RuntimeError:
        router.operations.activating.release()
        raise
    router.operations.activation = job
    return job


def latest_job(router: "Router") -> Job | None:
    """The activation that was started last, running or over; None when there was none."""
    return router.operations.activation


def scope_json(scope: ScopeId) -> dict[str, object]:
    return {"tier_id": scope.tier_id, "member_id": scope.member_id}


def preview_json(found: Preview) -> dict[str, object]:
    """A preview for people and programs: `plan_json`, and the scopes that it has to wait for."""
    return {**plan_json(found.plan), "scopes": [scope_json(scope) for scope in found.not_at_rest]}


def plan_json(plan: ActivationPlan) -> dict[str, object]:
    """A plan for people and programs: what changes, and what each change needs."""
    return {
        "changes": [
            {
                **scope_json(change.scope),
                "change": change.kind,
                "keys": list(change.keys),
                "needs_drain": change.needs_drain,
                "starts_cold": change.starts_cold,
            }
            for change in plan.changes
        ],
        "settings": list(plan.settings),
    }


def _validated(row: RouterSnapshot) -> ValidatedSnapshot:
    try:
        return publishing.load(row)
    except SnapshotError as error:
        refusal = Refused(422, error.code, str(error))
    # Outside of the except block, so that nothing is chained.
    raise refusal


def _claim(router: "Router") -> None:
    if not router.operations.activating.acquire(blocking=False):
        raise Refused(409, "activation_in_progress", SENTENCES["activation_in_progress"])


@contextmanager
def _only_one(router: "Router") -> "Iterator[None]":
    _claim(router)
    try:
        yield
    finally:
        router.operations.activating.release()


class _Activation:
    """One run. ``_own``: the scopes that it has quiesced, each with its count of quiesces at that moment."""

    def __init__(
        self,
        router: "Router",
        row: RouterSnapshot,
        actor: str,
        through: Through,
        drain_timeout: float | None,
        reason: str,
        on_step: OnStep | None,
    ) -> None:
        self._router = router
        self._row = row
        self._actor = actor
        self._through = through
        self._drain_timeout = drain_timeout
        self._reason = reason
        self._on_step = on_step
        self._steps: list[Step] = []
        self._own: dict[ScopeId, int] = {}

    def run(self) -> Activated:
        if not self._router.owns_ledger:
            raise not_ledger_owner()
        try:
            return self._run()
        except Refused as refusal:
            refusal.extra["steps"] = [step.as_json() for step in self._steps]
            raise

    def _run(self) -> Activated:
        router = self._router
        candidate = _validated(self._row)
        self._done("validate", "passed")
        previous = router.active
        plan = preview_of(router, candidate).plan
        try:
            if self._drain_timeout is not None:
                self._bring_to_rest(plan.must_drain, self._drain_timeout)
            self._switch(candidate, plan, previous)
        except BaseException:
            self._reopen("reopen")
            raise
        if previous is not None:
            self._verify(candidate, previous)
        self._reopen("readmit")
        return Activated(
            snapshot_id=self._row.pk,
            previous_id=None if previous is None else previous.snapshot_id,
            plan=plan,
            steps=tuple(self._steps),
        )

    # Before the pointer moves

    def _bring_to_rest(self, scopes: tuple[ScopeId, ...], timeout: float) -> None:
        """Quiesce what is open, then wait until all of it holds no lease."""
        deadline = time.monotonic() + timeout
        for scope in scopes:
            self._quiesce(scope)
        # One after another: all of them are closed, so each wait is one for the others, too.
        for scope in scopes:
            self._done("drain", self._drain(scope, deadline), scope)
        self._require_rest(scopes)

    def _quiesce(self, scope: ScopeId) -> None:
        router, place = self._router, (scope.tier_id, scope.member_id)
        if is_quiesced(scope, self._reading(scope.tier_id)):
            self._done("quiesce", "already_quiesced", scope)
            return
        before = router.operations.quiesces(place)
        with router.operations.closing(place):
            router.ledger.quiesce(scope.tier_id, self._reason, scope.member_id)
        self._own[scope] = before + 1
        router.availability.invalidate(*place)
        self._leave_entry("quiesce", scope, "quiesced")
        self._done("quiesce", "quiesced", scope)

    def _drain(self, scope: ScopeId, deadline: float) -> DrainOutcome:
        """Wait until the scope holds no lease, beside somebody else who may be draining it already."""
        ledger, drains = self._router.ledger, self._router.operations.drains
        place = (scope.tier_id, scope.member_id)
        while (left := deadline - time.monotonic()) > 0:
            try:
                drain = drains.start(ledger, *place, timeout=left, on_end=_no_record)
            except ScopeConflictError as conflict:
                running = drains.latest(*place)
                if conflict.code != "drain_in_progress" or running is None:
                    return "reopened"
                drain = running
            if drain.wait(left) and drain.outcome in ("drained", "reopened"):
                return drain.outcome
        return "timed_out"

    def _require_rest(self, scopes: tuple[ScopeId, ...]) -> None:
        left = undrained(scopes, self._router.ledger.snapshots()) if scopes else ()
        if left:
            self._refuse(409, "not_drained", scopes=[self._scope_row(scope) for scope in left])

    # The change itself

    def _switch(self, candidate: ValidatedSnapshot, plan: ActivationPlan, previous: "Active | None") -> None:
        """Move the pointer and swap, while no stored intent changes and nothing can be readmitted."""
        pointer_moved = False

        def first() -> None:
            nonlocal pointer_moved
            self._require_rest(plan.must_drain)
            self._point_at(self._row.pk, "activated")
            pointer_moved = True

        try:
            transitions.install(self._router, candidate, snapshot_id=self._row.pk, first=first)
        except _NOT_PERSISTED:
            self._refuse(503, "activation_not_persisted")
        except BaseException:
            if pointer_moved:
                # The process still serves the previous one, so a restart must not find another.
                self._point_at(None if previous is None else previous.snapshot_id, "restored")
            raise
        logger.info("snapshot %d is active", self._row.pk)
        self._done("activate", "activated")

    def _point_at(self, snapshot_id: int | None, result: str) -> None:
        with transaction.atomic(durable=True):
            publishing.point_at(snapshot_id, actor=self._actor)
            audit.record(
                actor=self._actor,
                through=self._through,
                action="activate",
                subject="no snapshot" if snapshot_id is None else f"snapshot {snapshot_id}",
                result=result,
            )

    # After it

    def _verify(self, candidate: ValidatedSnapshot, previous: "Active") -> None:
        """Probe what was quiesced here and is still configured; go back when any of it fails."""
        if not self._own:
            return
        probes = {
            scope: candidates
            for scope in self._own
            if (candidates := self._probe_candidates(scope, candidate)) is not None
        }
        wanted = [(scope.tier_id, member_id) for scope, found in probes.items() for member_id in found]
        with ThreadPoolExecutor(MAX_PROBES_AT_ONCE, thread_name_prefix="anvil-verify") as pool:
            results = dict(zip(wanted, pool.map(self._probe, wanted), strict=True))
        failed: list[dict[str, object]] = []
        for scope, found in probes.items():
            evidence = [results[scope.tier_id, member_id] for member_id in found]
            passed = [result for result in evidence if result.available]
            # A tier whose members are all quiesced has nothing to show: each is verified by its own readmit.
            shown = next(iter(passed or evidence), None)
            outcome = "no_open_member" if shown is None else shown.reason
            self._done("verify", outcome, scope)
            if evidence and not passed:
                failed.append({**scope_json(scope), "reason": outcome})
        if failed:
            self._restore(previous)
            self._refuse(409, "verification_failed", scopes=failed)

    def _probe_candidates(
        self, scope: ScopeId, candidate: ValidatedSnapshot
    ) -> tuple[str | None, ...] | None:
        """The members (or the direct tier, None) that can verify a scope; None when it is gone."""
        reading = self._reading(scope.tier_id)
        if reading is None:
            return None
        if scope.member_id is not None:
            known = any(member.member_id == scope.member_id for member in reading.members)
            return (scope.member_id,) if known else None
        if not candidate.config.tier(scope.tier_id).is_replica:
            return (None,)
        return tuple(member.member_id for member in reading.members if member.state == "admitting")

    def _probe(self, target: tuple[str, str | None]) -> AvailabilityResult:
        return self._router.availability.probe_now(*target)

    def _restore(self, previous: "Active") -> None:
        try:
            transitions.install(
                self._router,
                previous.snapshot,
                snapshot_id=previous.snapshot_id,
                first=lambda: self._point_at(previous.snapshot_id, "restored"),
            )
        except _NOT_PERSISTED:
            self._refuse(503, "restore_not_persisted")
        logger.warning("snapshot %d is active again", previous.snapshot_id)
        self._done("restore", "restored")
        self._reopen("reopen")

    def _reopen(self, name: Literal["readmit", "reopen"]) -> None:
        """Open what was quiesced here, but for what somebody else has quiesced since."""
        router = self._router
        for scope, since in self._own.items():
            place = (scope.tier_id, scope.member_id)
            with router.operations.opening(place, since=since) as undisturbed:
                try:
                    if undisturbed:
                        router.ledger.readmit(*place)
                except UnknownScopeError:
                    continue
            if undisturbed:
                self._leave_entry("readmit", scope, "readmitted")
            self._done(name, "readmitted" if undisturbed else "left_quiesced", scope)
        self._own = {}

    # Telling

    def _leave_entry(self, action: str, scope: ScopeId, result: str) -> None:
        """Say in the audit trail who closed or opened a scope: an activation does so on somebody's behalf."""
        with audit.after_the_fact(action):
            audit.record(
                actor=self._actor,
                through=self._through,
                action=action,
                tier_id=scope.tier_id,
                member_id=scope.member_id,
                subject=f"activation of snapshot {self._row.pk}",
                reason=self._reason,
                result=result,
            )

    def _done(self, name: StepName, outcome: str, scope: ScopeId | None = None) -> None:
        step = Step(name=name, scope=scope, outcome=outcome)
        self._steps.append(step)
        if self._on_step is not None:
            self._on_step(step)

    def _refuse(self, status: int, code: str, **extra: object) -> NoReturn:
        raise Refused(status, code, SENTENCES[code], extra=extra)

    def _reading(self, tier_id: str) -> AdmissionSnapshot | None:
        try:
            return self._router.ledger.snapshot(tier_id)
        except UnknownScopeError:
            return None

    def _scope_row(self, scope: ScopeId) -> dict[str, object]:
        """A scope that is not at rest: whether it admits, and what it still runs."""
        reading = self._reading(scope.tier_id)
        assert reading is not None
        active = dict(reading.member_active_requests).get(scope.member_id or "", 0)
        return {
            **scope_json(scope),
            "state": "quiesced" if is_closed(scope, reading) else "admitting",
            "active_requests": reading.active_requests if scope.member_id is None else active,
        }


def _no_record(drain: Drain) -> None:
    """The activation tells of its drains itself."""
