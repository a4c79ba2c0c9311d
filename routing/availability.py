"""Readiness: what the last accepted probe said of each upstream, kept fresh and fenced.

One :class:`HttpHealthAvailability` holds one scope per configured ``(tier_id, member_id)``. Two numbers fence
what a scope publishes (readiness fencing R001 to R007). The *generation* is drawn anew, from one counter
that never repeats, at every invalidation: a probe that began before is discarded. The *issuance number* grows
with every probe of the scope: one that began before the newest accepted observation is discarded, too. A
discarded probe leaves no trace, in the cache or in what its caller gets.

How long an accepted result is served: for the probe interval; while the prober runs, also for a grace of
twice the probe timeout and one second, in which a refresh has to come. After that the scope counts as never
probed, so a stuck prober makes an upstream unavailable rather than ready for ever. There is no hysteresis.

The prober's threads refresh each scope an interval after its last result, a failed one after a second, a
new, invalidated or marked one at once. They leave quiesced scopes alone.
"""

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, NamedTuple

from routing.probes import (
    AvailabilityResult,
    ProbeTarget,
    RuntimeModelMetadata,
    Transport,
    http_get,
    is_readiness_reason,
    observe,
    targets_from_config,
)

__all__ = [
    "AvailabilityResult",
    "HttpHealthAvailability",
    "ProbeTarget",
    "RuntimeModelMetadata",
    "is_readiness_reason",
    "targets_from_config",
]

logger = logging.getLogger(__name__)

RETRY_DELAY: Final = 1.0
"""Seconds after which a failed scope is probed again (at most a whole interval)."""

MAX_WORKERS: Final = 16
"""Prober threads at most; one per probed scope up to that. A probe blocks, so this bounds those at once."""

MAX_FAILING_AT_ONCE: Final = 8
"""Of them, how many may be busy with scopes that failed last time: hanging ones never hold up the healthy."""

Key = tuple[str, str | None]

NOT_CONFIGURED: Final = AvailabilityResult(True, "availability_not_configured")
"""The constant result of a target that has nothing to probe; nothing invalidates it."""

DROPPED: Final = AvailabilityResult(False, "probe_invalidated")
"""The answer for a scope that is not, or no longer, configured: whatever was known of it does not count."""


@dataclass(slots=True, eq=False)
class _Scope:
    """The state of one key, guarded by its owner's lock. Never reused for another target."""

    target: ProbeTarget
    generation: int
    issued: int = 0  # the newest probe that began
    accepted: int = 0  # the newest whose observation counts
    in_flight: bool = False  # single flight: who sets it, probes
    landed: bool = False  # some probe has ended, whatever became of it
    urgent: bool = False  # marked unavailable from outside: probe again at once
    result: AvailabilityResult | None = None
    last_available: bool | None = None  # of the accepted observations since the last invalidation
    flaps: int = 0

    @property
    def failing(self) -> bool:
        return self.result is not None and not self.result.available

    @property
    def pending(self) -> AvailabilityResult:
        return AvailabilityResult(False, "probe_pending", expected_model=self.target.expected_model)


class _Ticket(NamedTuple):
    """A probe that began: the scope, and where its two numbers stood."""

    scope: _Scope
    generation: int
    number: int


class HttpHealthAvailability:
    """Cached, fenced readiness of every target. Every method may be called from any thread.

    ``interval`` and ``timeout`` are seconds, ``max_bytes`` bounds a model list. No lock is held during I/O.
    Starts no thread until :meth:`start`.
    """

    def __init__(
        self,
        targets: Iterable[ProbeTarget],
        *,
        interval: float,
        timeout: float,
        max_bytes: int,
        transport: Transport | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._transport: Transport = transport or http_get
        self._monotonic = monotonic
        self._wall_clock = wall_clock
        self._environ = environ
        self._quiesced: Callable[[], AbstractSet[Key]] = frozenset
        self._changed = threading.Condition(threading.Lock())
        self._changes = 0
        self._generations = itertools.count(1)
        self._scopes: dict[Key, _Scope] = {}
        self._members: dict[str, list[_Scope]] = {}
        self._workers: list[threading.Thread] = []
        self._stopping: threading.Event | None = None
        self._last_turn = monotonic()
        self.first_round_done = threading.Event()
        self.reconfigure(targets, interval=interval, timeout=timeout, max_bytes=max_bytes)

    # --- reading -------------------------------------------------------------------------------------

    def check(self, tier_id: str, member_id: str | None = None) -> AvailabilityResult:
        """The held result, or else one probe in line, at most ``timeout`` seconds (single flight).

        ``probe_pending`` when another probe owns the scope and no result is held. Probes a quiesced scope,
        too: this is what verifies a readmit, after an invalidation.
        """
        with self._changed:
            scope = self._scopes.get((tier_id, member_id))
            if scope is None:
                return DROPPED
            held = self._held(scope)
            if held is not None:
                return held
            if scope.in_flight:
                return scope.pending
            ticket = self._take_off(scope)
        return self._fly(ticket)

    def probe_now(self, tier_id: str, member_id: str | None = None) -> AvailabilityResult:
        """Probe in line whatever is held and whoever else probes; the newest to begin wins."""
        with self._changed:
            scope = self._scopes.get((tier_id, member_id))
            if scope is None:
                return DROPPED
            if not scope.target.is_probed:
                return NOT_CONFIGURED
            ticket = self._issue(scope)
        return self._settle(ticket, self._observe(scope.target))

    def cached(self, tier_id: str, member_id: str | None = None) -> AvailabilityResult | None:
        """The held result or None. Reading it has no effect."""
        with self._changed:
            scope = self._scopes.get((tier_id, member_id))
            return None if scope is None else self._held(scope)

    def current(self, tier_id: str, member_id: str | None = None) -> AvailabilityResult:
        """What the request path uses for a direct tier: :meth:`readiness` of this one scope."""
        with self._changed:
            scope = self._scopes.get((tier_id, member_id))
        return DROPPED if scope is None else self._complete([scope])[0]

    def readiness(self, tier_id: str) -> dict[str, AvailabilityResult]:
        """What the request path uses: the result of every member, in id order; empty for a direct tier.

        Waits for nothing that has a held result. Members without one are probed in line, together, once, at
        most ``timeout`` seconds. They are ``probe_pending`` instead when they are quiesced, since they can't
        be selected, and when another member is ready while the prober runs, which looks at them at once: a
        member that joins does not hold up its peers' traffic.
        """
        with self._changed:
            scopes = self._members.get(tier_id, [])
        results = self._complete(scopes)
        return {scope.target.member_id or "": result for scope, result in zip(scopes, results, strict=True)}

    def flaps(self, tier_id: str, member_id: str | None = None) -> int:
        """How often accepted observations went from ready to unavailable or back since it was configured.

        Of observations between which nothing was invalidated: an operator's quiesce and readmit are no flaps.
        """
        with self._changed:
            scope = self._scopes.get((tier_id, member_id))
            return 0 if scope is None else scope.flaps

    @property
    def first_round_complete(self) -> bool:
        """Whether the prober has probed every scope once, but quiesced ones. Stays true."""
        return self.first_round_done.is_set()

    def seconds_since_turn(self) -> float:
        """How long ago a prober thread last looked at the schedule: up to an interval when all is well."""
        return max(0.0, self._monotonic() - self._last_turn)

    # --- what changes it -----------------------------------------------------------------------------

    def invalidate(self, tier_id: str | None = None, member_id: str | None = None) -> None:
        """Forget, and fence every probe that has begun: of all scopes, of a tier and all its members, or of
        one member alone. Raises ``ValueError`` for a member without a tier; unknown ids change nothing.
        """
        if tier_id is None and member_id is not None:
            raise ValueError("a member is named within its tier")
        with self._changed:
            for (tier, member), scope in self._scopes.items():
                if tier_id in (None, tier) and member_id in (None, member):
                    self._fence(scope)
            self._announce()

    def mark_unavailable(self, tier_id: str, member_id: str | None, reason: str) -> None:
        """Take a scope out at once, since a request found its connection refused or reset.

        ``reason`` is ``health_transport_NAME`` of the closed list. Counts as an observation that begins now,
        so an earlier probe can't overwrite it, and has the prober look again at once. A target that is not
        probed is left alone, because nothing would bring it back.
        """
        if not (reason.startswith("health_transport_") and is_readiness_reason(reason)):
            raise ValueError("a mark takes a transport reason of the closed list")
        with self._changed:
            scope = self._scopes.get((tier_id, member_id))
            if scope is None or not scope.target.is_probed:
                return
            marked = AvailabilityResult(
                False,
                reason,
                expected_model=scope.target.expected_model,
                checked_at=self._wall_clock(),
                observed_monotonic=self._monotonic(),
            )
            self._publish(self._issue(scope), marked)
            scope.urgent = True
            self._announce()

    def reconfigure(
        self, targets: Iterable[ProbeTarget], *, interval: float, timeout: float, max_bytes: int
    ) -> None:
        """Take over a new configuration while probes are under way.

        Results, generations, flap counts and flights of targets with the same key and fingerprint stay. The
        others are dropped: what still comes in for them is discarded. New and changed ones start cold.
        Raises ``ValueError`` for two targets of one key; nothing has changed then.
        """
        with self._changed:
            kept = self._scopes
            scopes: dict[Key, _Scope] = {}
            for target in targets:
                if target.key in scopes:
                    raise ValueError("two probe targets share one key")
                scope = kept.get(target.key)
                if scope is None or scope.target.fingerprint != target.fingerprint:
                    scope = _Scope(target, next(self._generations))
                scopes[target.key] = scope
            for key, scope in kept.items():
                if scopes.get(key) is not scope:
                    self._fence(scope)
            self._scopes = scopes
            self._members = _by_tier(scopes.values())
            self._interval, self._timeout, self._max_bytes = interval, timeout, max_bytes
            if self._running:
                self._hire()
            self._announce()

    def use_quiesced(self, quiesced: Callable[[], AbstractSet[Key]]) -> None:
        """Tell how to ask which scopes are quiesced: ``(tier_id, None)`` stands for a tier and its members.

        Called without any lock of this object held; what it returns is only read.
        """
        self._quiesced = quiesced

    # --- the prober ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the prober's threads; does nothing while they run."""
        with self._changed:
            if self._running:
                return
            self._stopping = threading.Event()
            self._workers = []
            self._last_turn = self._monotonic()
            self._hire()

    def stop(self, timeout: float | None = None) -> bool:
        """Stop the prober; waits at most ``timeout`` seconds (default: a probe's and one more) for all of
        its threads, and says whether they have ended. May be called again.
        """
        with self._changed:
            if self._stopping is not None:
                self._stopping.set()
            workers = self._workers
            self._announce()
        deadline = time.monotonic() + (self._timeout + 1.0 if timeout is None else timeout)
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        return not any(worker.is_alive() for worker in workers)

    def run_once(self) -> float:
        """One turn of a prober thread: run the probe that has been due longest, if any is.

        Returns the seconds to wait for the next one; 0.0 after a probe.
        """
        quiesced = self._quiesced()
        with self._changed:
            self._last_turn = self._monotonic()
            ticket, wait = self._next_due(quiesced)
        if ticket is None:
            return wait
        closed = True
        try:
            # It may have been quiesced since the set was read above: then the invalidation made it due.
            closed = _is_closed(ticket.scope.target.key, self._quiesced())
        finally:
            if closed:
                with self._changed:
                    ticket.scope.in_flight = False
        if not closed:
            self._fly(ticket)
        return 0.0

    def _work(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            seen = self._changes
            try:
                wait = self.run_once()
            except Exception:  # noqa: BLE001 - one failed turn must not end the loop
                logger.error("a turn of the readiness prober failed")
                wait = RETRY_DELAY
            self._rest(wait, seen, stopping)

    def _rest(self, wait: float, seen: int, stopping: threading.Event) -> None:
        with self._changed:
            self._changed.wait_for(lambda: stopping.is_set() or self._changes != seen, timeout=wait)

    @property
    def _running(self) -> bool:
        return self._stopping is not None and not self._stopping.is_set()

    def _hire(self) -> None:
        """One thread per probed scope, up to the maximum. Holds the lock."""
        stopping = self._stopping
        assert stopping is not None
        probed = sum(scope.target.is_probed for scope in self._scopes.values())
        while len(self._workers) < min(MAX_WORKERS, max(1, probed)):
            name = f"anvil-prober-{len(self._workers) + 1}"
            worker = threading.Thread(target=self._work, args=(stopping,), name=name, daemon=True)
            worker.start()
            self._workers.append(worker)

    def _next_due(self, quiesced: AbstractSet[Key]) -> tuple[_Ticket | None, float]:
        """Claim the scope that has been due longest, or tell how long none is. Holds the lock."""
        now = self._monotonic()
        failing = sum(scope.in_flight and scope.failing for scope in self._scopes.values())
        wait = self._interval
        first: _Scope | None = None
        first_due = now
        complete = True
        for key, scope in self._scopes.items():
            if not scope.target.is_probed:
                continue
            if _is_closed(key, quiesced):
                wait = min(wait, RETRY_DELAY)  # nobody tells when it is open again
                continue
            complete = complete and scope.landed
            if scope.in_flight or (scope.failing and failing >= MAX_FAILING_AT_ONCE):
                continue
            due = self._due(scope)
            if due > now:
                wait = min(wait, due - now)
            elif first is None or due < first_due:
                first, first_due = scope, due
        if complete:
            self.first_round_done.set()
        return (None, wait) if first is None else (self._take_off(first), 0.0)

    def _due(self, scope: _Scope) -> float:
        """When, on the monotonic clock, ``scope`` is to be probed again; the past when it is cold."""
        observed = None if scope.result is None else scope.result.observed_monotonic
        if observed is None:
            return float("-inf")
        if scope.urgent:
            return observed
        return observed + (min(RETRY_DELAY, self._interval) if scope.failing else self._interval)

    # --- probes: begin, run, settle ------------------------------------------------------------------

    def _held(self, scope: _Scope) -> AvailabilityResult | None:
        """The result that still counts, if any. Holds the lock."""
        if not scope.target.is_probed:
            return NOT_CONFIGURED
        observed = None if scope.result is None else scope.result.observed_monotonic
        if observed is None:
            return None
        if self._running:
            valid_for = self._interval + 2 * self._timeout + 1.0
        else:
            valid_for = min(RETRY_DELAY, self._interval) if scope.failing else self._interval
        return scope.result if self._monotonic() - observed <= valid_for else None

    def _issue(self, scope: _Scope) -> _Ticket:
        scope.issued += 1
        return _Ticket(scope, scope.generation, scope.issued)

    def _take_off(self, scope: _Scope) -> _Ticket:
        scope.in_flight = True
        return self._issue(scope)

    def _fly(self, ticket: _Ticket) -> AvailabilityResult:
        """Run a probe that owns its scope's single flight, and give the scope free whatever happens."""
        try:
            return self._settle(ticket, self._observe(ticket.scope.target))
        finally:
            with self._changed:
                ticket.scope.in_flight = False
                self._announce()

    def _observe(self, target: ProbeTarget) -> AvailabilityResult:
        return observe(
            target,
            transport=self._transport,
            timeout=self._timeout,
            max_bytes=self._max_bytes,
            environ=self._environ,
            monotonic=self._monotonic,
            wall_clock=self._wall_clock,
        )

    def _settle(self, ticket: _Ticket, result: AvailabilityResult) -> AvailabilityResult:
        """Accept and publish what a probe found, or discard it; what its caller gets either way."""
        scope = ticket.scope
        with self._changed:
            scope.landed = True
            if ticket.generation != scope.generation:
                return _discarded(scope, "probe_invalidated")
            if ticket.number < scope.accepted:
                return _discarded(scope, "probe_superseded")
            self._publish(ticket, result)
            self._announce()
        return result

    def _publish(self, ticket: _Ticket, result: AvailabilityResult) -> None:
        scope = ticket.scope
        scope.accepted = ticket.number
        scope.result = result
        scope.urgent = False
        scope.flaps += scope.last_available is not None and scope.last_available != result.available
        scope.last_available = result.available

    def _fence(self, scope: _Scope) -> None:
        scope.generation = next(self._generations)
        scope.result = None
        scope.urgent = False
        # Who invalidates means to change something there: what comes after it is no flap.
        scope.last_available = None

    def _announce(self) -> None:
        self._changes += 1
        self._changed.notify_all()

    def _complete(self, scopes: Sequence[_Scope]) -> list[AvailabilityResult]:
        """One result each, in order: the held one, else that of a probe in line, else ``probe_pending``."""
        with self._changed:
            held = [self._held(scope) for scope in scopes]
        if None not in held:
            return [result for result in held if result is not None]
        quiesced = self._quiesced()
        can_wait = self._running and any(result is not None and result.available for result in held)
        tickets: dict[int, _Ticket] = {}
        results: list[AvailabilityResult] = []
        with self._changed:
            for place, scope in enumerate(scopes):
                key = scope.target.key
                closed = _is_closed(key, quiesced)
                known = self._held(scope) if self._scopes.get(key) is scope else DROPPED
                if known is None and not (closed or scope.in_flight or can_wait):
                    tickets[place] = self._take_off(scope)
                results.append(known or scope.pending)
        self._fly_together(tickets, results)
        return results

    def _fly_together(self, tickets: Mapping[int, _Ticket], results: list[AvailabilityResult]) -> None:
        """Put the result of each ticket into its place; every probe but one gets a thread for its length."""

        def fly(place: int) -> None:
            results[place] = self._fly(tickets[place])

        deadline = time.monotonic() + self._timeout
        places = list(tickets)
        threads: list[threading.Thread] = []
        for place in places[1:]:
            thread = threading.Thread(target=fly, args=(place,), name="anvil-probe", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread to be had; a flight that was claimed is flown all the same
                fly(place)
            else:
                threads.append(thread)
        for place in places[:1]:
            fly(place)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _is_closed(key: Key, quiesced: AbstractSet[Key]) -> bool:
    """Whether a scope, or the tier that it belongs to, is quiesced."""
    return key in quiesced or (key[0], None) in quiesced


def _discarded(scope: _Scope, reason: str) -> AvailabilityResult:
    return AvailabilityResult(False, reason, expected_model=scope.target.expected_model)


def _by_tier(scopes: Iterable[_Scope]) -> dict[str, list[_Scope]]:
    """The members of each tier, in id order."""
    members: dict[str, list[_Scope]] = {}
    for scope in scopes:
        if scope.target.member_id is not None:
            members.setdefault(scope.target.tier_id, []).append(scope)
    for found in members.values():
        found.sort(key=lambda scope: scope.target.member_id or "")
    return members
