"""A whole control plane in this process: a real router behind Django, its probes answered by the test."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import OperationalError, connection
from django.test import Client

from admission.core import AdmissionLease, MemberAdmissionLease
from admission.models import AdmissionIntent
from routing.models import AuditEntry
from routing.router import Router
from routing.snapshot import validate_snapshot
from tests.unit.routing.availability_support import Answer, Script, models

PATIENCE = 10.0
"""Seconds that anything may take before a test gives up."""

TOKEN = "the-bootstrap-token-of-the-tests"
ENVIRON = {"ANVIL_TOKEN": TOKEN, "OTHER_TOKEN": "the-other-token-of-the-tests"}

TRANSITION = "/v1/admin/transition"
INTENT = "/v1/admin/intent"
KEYS = "/v1/admin/keys"

_IDENTITY = f"""
[router.tiers.replica_identity]
model_revision = "a1b2c3"
engine_version = "0.11.0"
image_digest = "sha256:{"1" * 64}"
config_fingerprint = "sha256:{"2" * 64}"
"""


def _member(member_id: str, host: str) -> str:
    return f"""
[[router.tiers.replicas]]
id = "{member_id}"
base_url = "http://{host}/v1"
host_id = "gpu-host"
resource_id = "{host}"
qualification_ref = "bench:run-1"
max_concurrency = 2
"""


CONFIG = f"""
[server]
auth_env = "ANVIL_TOKEN"

[router]
availability_probe_interval = 3600.0
availability_probe_timeout = 10.0

[router.model_routes]
"llm.chat" = "chat"
"llm.solo" = "solo"

[[router.tiers]]
id = "chat"
context_limit = 32768
model = "qwen"
model_identity = true
replica_strategy = "capacity"
{_IDENTITY}
{_member("member-a", "alpha")}
{_member("member-b", "beta")}

[[router.tiers]]
id = "solo"
base_url = "http://solo/v1"
context_limit = 32768
model = "qwen"
model_identity = true
max_concurrency = 3

[[router.tiers]]
id = "plain"
base_url = "http://plain/v1"
context_limit = 32768
model = "qwen"

[[router.tiers]]
id = "healthy"
base_url = "http://healthy/v1"
context_limit = 32768
model = "qwen"
health_path = "/health"

[[router.tiers]]
id = "dynamic"
base_url = "http://dynamic/v1"
context_limit = 32768
metadata_source = "upstream"
"""
"""A replica tier of two; direct tiers with an identity, with nothing to probe, with a health path alone, and
with what the upstream says of itself."""

TOPOLOGY = """
schema_version = 1
id = "tests"

[[hosts]]
id = "gpu-host"
roles = ["gpu"]

[[resources]]
id = "alpha"
host = "gpu-host"
role = "llm"
endpoint = "http://alpha/v1"

[[resources]]
id = "beta"
host = "gpu-host"
role = "llm"
endpoint = "http://beta/v1"
"""


def probes() -> Script:
    """Every upstream is well."""
    answers: dict[str, Answer] = {host: models("qwen") for host in ("alpha", "beta", "solo", "plain")}
    answers["healthy"] = (200, b"")
    answers["dynamic"] = models("llama", max_model_len=8192)
    return Script(**answers)


def install(router: Router, config: str = CONFIG, *, snapshot_id: int = 1) -> None:
    """Make ``config`` active, as a start or an activation does."""
    from routing import transitions

    snapshot = validate_snapshot(config.encode(), TOPOLOGY.encode())
    transitions.install(router, snapshot, snapshot_id=snapshot_id)


@dataclass(frozen=True, kw_only=True)
class Reply:
    status: int
    json: Any
    headers: Mapping[str, str]
    body: bytes


@dataclass(kw_only=True)
class Control:
    """The router of a test, and how to talk to it as the bearer of ``token``."""

    router: Router
    probes: Script
    token: str | None = TOKEN
    _leases: list[AdmissionLease] = field(default_factory=list)

    def request(
        self, method: str, path: str, body: object = None, *, token: str | None = None, **headers: Any
    ) -> Reply:
        """``body`` is bytes, or is sent as JSON; ``headers`` are named as WSGI names them."""
        bearer = token or self.token
        environ: dict[str, Any] = {} if bearer is None else {"HTTP_AUTHORIZATION": f"Bearer {bearer}"}
        if body is not None:
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            environ |= {"data": sent, "content_type": "application/json"}
        response = Client().generic(method, path, **environ | headers)
        data = b"".join(response) if response.streaming else response.content
        return Reply(
            status=response.status_code,
            json=json.loads(data) if data.startswith((b"{", b"[")) else None,
            headers={name.lower(): value for name, value in response.items()},
            body=data,
        )

    def transition(self, **body: object) -> Reply:
        return self.request("POST", TRANSITION, body)

    def do(self, action: str, tier_id: str, member_id: str | None = None, **more: object) -> Reply:
        """Carry out an action, not preview it."""
        scope = {"tier_id": tier_id} if member_id is None else {"tier_id": tier_id, "member_id": member_id}
        return self.transition(action=action, **scope, confirm=True, dry_run=False, **more)

    # What a request holds

    def run_request(self, tier_id: str, member_id: str | None = None) -> AdmissionLease:
        """A request that runs until it is ended, on that member."""
        ledger = self.router.ledger
        lease: AdmissionLease | None
        if member_id is None:
            lease = ledger.acquire(tier_id)
        else:
            ready = {
                member: member == member_id for member in self.router.active.config.tier(tier_id).member_ids
            }
            lease = ledger.acquire_member(tier_id, ready)
        assert lease is not None
        if isinstance(lease, MemberAdmissionLease):
            assert lease.member_id == member_id
        self._leases.append(lease)
        return lease

    def end_requests(self) -> None:
        """End what runs, and with it every drain."""
        for lease in self._leases:
            lease.release()
        for tier in self.router.active.config.tiers if self.router.active is not None else ():
            for member_id in (None, *tier.member_ids):
                drain = self.router.operations.drains.latest(tier.id, member_id)
                assert drain is None or drain.wait(PATIENCE)

    # What there is to see

    def facts(self) -> tuple[object, ...]:
        """Everything that a refusal must leave as it was."""
        availability = self.router.availability
        keys = [
            (tier.id, member_id)
            for tier in self.router.active.config.tiers
            for member_id in (tier.member_ids or (None,))
        ]
        return (
            self.router.ledger.snapshots(),
            tuple(availability.cached(*key) for key in keys),
            tuple(self.probes.asked),
            intent_rows(),
            AuditEntry.objects.count(),
        )


def intent_rows() -> list[tuple[str, str, str, str]]:
    return list(AdmissionIntent.objects.values_list("tier_id", "member_id", "reason", "actor"))


def audit_rows() -> list[tuple[str, ...]]:
    """Oldest first: actor, through, action, tier, member, reason, result."""
    fields = ("actor", "through", "action", "tier_id", "member_id", "reason", "result")
    return list(AuditEntry.objects.order_by("id").values_list(*fields))


@contextmanager
def failing_database(*tables: str) -> Iterator[None]:
    """Every statement that would change one of ``tables`` fails as a locked database does."""

    def refuse(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if not sql.startswith("SELECT") and any(table in sql for table in tables):
            raise OperationalError("database is locked: /secret/place")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        yield


@contextmanager
def in_thread(call: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Run ``call`` in a thread of its own; the yielded function waits for it and gives its result."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(PATIENCE)
        assert not thread.is_alive()
        return results[0]

    try:
        yield result
    finally:
        thread.join(PATIENCE)
