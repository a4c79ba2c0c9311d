"""The observability endpoints over HTTP: literal answers, who may ask, and what asking leaves alone."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client

import anvil_site.runtime
from admission.replica_scheduler import PressureFreshness, PressureSignalState, ReplicaPressure
from anvil_site.runtime import Runtime
from routing.access import Key, Scope, digest
from routing.passage import Observation
from routing.records import AttemptRecord, DecisionRecord
from routing.router import bind
from telemetry import process
from telemetry.exporter import VERSION
from tests.web.control_support import CONFIG, Control, install

pytestmark = [pytest.mark.django_db]

PATHS = [
    "/v1/models/capacity",
    "/v1/models/capabilities",
    "/v1/models/fingerprints",
    "/v1/health/tiers",
    "/v1/router/status",
    "/v1/stats",
    "/v1/decisions",
    "/v1/requests/req-1",
    "/v1/admin/explain?model=llm.chat",
    "/metrics",
]
CHAT_KEY = "a-key-that-may-chat"
OBSERVE_KEY = "a-key-that-may-look"

RECORD = DecisionRecord(
    route="llm.solo",
    kind="chat",
    requested_tier="solo",
    served_tier="solo",
    attempts=(
        AttemptRecord(
            tier_id="solo",
            outcome="served",
            succeeded=True,
            reason="served",
            prompt_tokens=7,
            completion_tokens=9,
        ),
    ),
    total_prompt_tokens=7,
    total_completion_tokens=9,
    request_bytes=100,
    response_bytes=200,
    latency_ms=50.0,
    request_id="req-1",
)
OBSERVATION = Observation(
    route="llm.solo",
    tier="solo",
    member=None,
    outcome="served",
    key_name="bootstrap",
    overhead_seconds=0.001,
    first_token_seconds=0.01,
    seconds=0.05,
    prompt_tokens=7,
    completion_tokens=9,
)
RECORD_JSON = {
    "route": "llm.solo",
    "kind": "chat",
    "requested_tier": "solo",
    "served_tier": "solo",
    "attempts": [
        {
            "tier_id": "solo",
            "outcome": "served",
            "succeeded": True,
            "reason": "served",
            "prompt_tokens": 7,
            "completion_tokens": 9,
        }
    ],
    "total_prompt_tokens": 7,
    "total_completion_tokens": 9,
    "request_bytes": 100,
    "response_bytes": 200,
    "latency_ms": 50.0,
    "request_id": "req-1",
    "workbench_run_id": "-",
    "task_id": "-",
}


class Cache:
    """The pressure owner of a running router, which may only be peeked at."""

    def __init__(self, **pressure: ReplicaPressure) -> None:
        self.pressure = pressure

    def peek(self, tier_id: str) -> dict[str, ReplicaPressure]:
        return dict(self.pressure)

    def snapshot(self, tier_id: str) -> None:
        raise AssertionError("visibility must not schedule readings")

    def close(self) -> None:
        """Nothing runs."""


@pytest.fixture
def observed(control: Control, monkeypatch: pytest.MonkeyPatch) -> Control:
    """One member fresh and at zero, one unknown; one decision on record."""
    cache = Cache(
        **{
            "member-a": ReplicaPressure(PressureFreshness.FRESH, 0, PressureSignalState.VALID),
            "member-b": ReplicaPressure(),
        }
    )
    monkeypatch.setattr(control.router, "_pressure", cache)
    process.evidence().record(RECORD, OBSERVATION)
    return control


def by_id(answer: Any) -> dict[str, Any]:
    return {row["id"]: row for row in answer.json["data"]}


def metric(text: bytes, line: str) -> bool:
    return line in text.decode().splitlines()


@pytest.mark.parametrize("path", PATHS)
class TestWhoMayAsk:
    def test_nobody_without_a_key_and_no_source_is_read(
        self, observed: Control, monkeypatch: pytest.MonkeyPatch, path: str
    ) -> None:
        process.bind(None)
        monkeypatch.setattr(observed.router, "_ledger", None)
        for token in ("wrong", None):
            headers = {} if token is None else {"HTTP_AUTHORIZATION": f"Bearer {token}"}
            response = Client().get(path, **headers)
            assert (response.status_code, response["WWW-Authenticate"]) == (401, "Bearer")
            assert json.loads(response.content)["error"]["code"] == "invalid_api_key"

    @pytest.mark.requirement("C-T011.1")
    def test_a_chat_key_may_not_and_an_observer_may(self, observed: Control, path: str) -> None:
        observed.router.ring.replace(
            [
                Key(key_id=1, name="chat", digest=digest(CHAT_KEY), scopes=frozenset({Scope.INFER})),
                Key(key_id=2, name="look", digest=digest(OBSERVE_KEY), scopes=frozenset({Scope.OBSERVE})),
            ]
        )
        refused = observed.request("GET", path, token=CHAT_KEY)
        assert (refused.status, refused.json["error"]["code"]) == (403, "insufficient_scope")
        allowed = observed.request("GET", path, token=OBSERVE_KEY)
        assert (allowed.status, allowed.headers["cache-control"]) == (200, "no-store")

    def test_anybody_where_authentication_is_off(self, observed: Control, path: str) -> None:
        observed.router.ring.enabled = False
        observed.token = None
        assert observed.request("GET", path).status == 200

    def test_other_methods_are_refused(self, observed: Control, path: str) -> None:
        answer = observed.request("POST", path, {})
        assert answer.status == 405
        assert "GET" in answer.headers["allow"]

    def test_parameters_that_are_not_known_or_repeated(self, observed: Control, path: str) -> None:
        joint = "&" if "?" in path else "?"
        for query in ("color=red", "model=llm.chat&model=llm.solo"):
            answer = observed.request("GET", f"{path}{joint}{query}")
            assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_request"), query
            assert answer.headers["cache-control"] == "no-store"

    def test_a_router_without_a_configuration(
        self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, path: str
    ) -> None:
        """It stands by, or nothing is installed: 503 where a configuration is needed, else an empty truth."""
        runtime.router.ring.enabled = False
        bind(runtime.router)
        response = Client().get(path)
        needed = not path.startswith(("/v1/router", "/v1/stats", "/v1/decisions", "/v1/requests", "/metrics"))
        expected = 503 if needed else (404 if path.startswith("/v1/requests") else 200)
        assert response.status_code == expected
        if needed:
            assert json.loads(response.content)["error"]["code"] == "not_configured"


@pytest.mark.requirement("C-T011", "C-T011.1", "Q-T005", "Q-T005.2", "C-R011")
def test_capacity_and_metrics_follow_the_same_owners(observed: Control) -> None:
    """Leases, quiesce and release show at once, in both, and nothing else moves."""
    observed.run_request("chat", "member-a")
    observed.router.ledger.quiesce("chat", member_id="member-a")
    before = observed.router.ledger.snapshots()
    row = by_id(observed.request("GET", "/v1/models/capacity"))["chat"]
    assert row["admission"] == {
        "state": "admitting",
        "active_requests": 1,
        "draining": False,
        "complete": True,
        "member_active_requests": {"member-a": 1, "member-b": 0},
        "max_concurrency": 4,
        "members": [
            {
                "id": "member-a",
                "state": "quiesced",
                "active_requests": 1,
                "max_concurrency": 2,
                "draining": True,
            },
            {
                "id": "member-b",
                "state": "admitting",
                "active_requests": 0,
                "max_concurrency": 2,
                "draining": False,
            },
        ],
    }
    assert [member["telemetry"] for member in row["metadata"]["members"]] == [
        {"freshness": "fresh", "pressure_ppm": 0, "requests_state": "valid", "kv_state": "missing"},
        {"freshness": "unknown", "pressure_ppm": None, "requests_state": "missing", "kv_state": "missing"},
    ]
    text = observed.request("GET", "/metrics").body
    for line in (
        'anvil_router_replica_tier_active_requests{tier="chat"} 1.0',
        'anvil_router_replica_member_active_requests{member="member-a",tier="chat"} 1.0',
        'anvil_router_replica_member_pressure_ppm{member="member-a",tier="chat"} 0.0',
        "anvil_router_replica_member_pressure_freshness"
        '{freshness="unknown",member="member-b",tier="chat"} 1.0',
        'anvil_inflight{member="member-a",tier="chat"} 1.0',
        'anvil_member_admitting{member="member-a",tier="chat"} 0.0',
        'anvil_tier_admitting{tier="chat"} 1.0',
    ):
        assert metric(text, line), line
    assert b'pressure_ppm{member="member-b"' not in text
    assert observed.router.ledger.snapshots() == before
    observed.end_requests()
    after = by_id(observed.request("GET", "/v1/models/capacity"))["chat"]["admission"]
    assert (after["active_requests"], after["members"][0]["draining"]) == (0, False)


@pytest.mark.requirement("C-T011.1")
def test_an_owner_that_cannot_be_believed_is_unavailable(
    observed: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = observed.router.ledger
    lying = replace(real.snapshot("chat"), active_requests=3)

    class Lying:
        def snapshot(self, tier_id: str) -> Any:
            return lying if tier_id == "chat" else real.snapshot(tier_id)

        def snapshots(self) -> Any:
            return real.snapshots()

    monkeypatch.setattr(observed.router, "_ledger", Lying())
    row = by_id(observed.request("GET", "/v1/models/capacity"))["chat"]
    assert row["admission"] == {
        "state": "unavailable",
        "active_requests": None,
        "draining": None,
        "complete": False,
        "member_active_requests": None,
        "max_concurrency": None,
        "members": None,
    }
    assert b"anvil_router_replica_tier_active_requests" not in observed.request("GET", "/metrics").body


@pytest.mark.requirement("C-T011.1", "C-R009")
def test_asking_probes_fetches_and_changes_nothing(
    observed: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Cache.snapshot` raises; engines' readings would come from the poller, whose provider raises too."""

    def fail(*arguments: object) -> Any:
        raise AssertionError("visibility must not fetch")

    monkeypatch.setattr(process.evidence().live, "_provider", fail)
    facts = observed.facts()
    for path in PATHS:
        assert observed.request("GET", path).status == 200
    assert observed.facts() == facts


def test_capacity_takes_its_parameters(observed: Control) -> None:
    def ask(query: str) -> Any:
        return observed.request("GET", f"/v1/models/capacity?{query}")

    assert list(by_id(ask("model=LLM.Solo"))) == ["solo"]
    assert ask("gpu_role=nowhere").json == {"object": "list", "data": []}
    scenario = by_id(ask("model=llm.solo&input_tokens=32768&output_tokens=1"))["solo"]["scenario"]
    assert (scenario["context_tokens"], scenario["allowed"]) == (32_769, False)
    for bad in ("images=-1", "images=1.5", "input_tokens=", "gpu_role=a%20b"):
        answer = ask(bad)
        assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_request"), bad
    unknown = ask("model=planted-model")
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "model_not_found")
    assert b"planted" not in unknown.body


def test_capabilities(observed: Control) -> None:
    answer = observed.request("GET", "/v1/models/capabilities?model=llm.chat")
    assert answer.json == {
        "object": "list",
        "data": [
            {
                "object": "model_capabilities",
                "id": "chat",
                "aliases": ["llm.chat"],
                "model": "qwen",
                "context_limit_tokens": 32_768,
                "tools": {"supported": False},
                "modalities": None,
                "thinking": {
                    "supported": None,
                    "default": None,
                    "caller_override": None,
                    "max_tokens": None,
                },
                "compat": {
                    "supportsUsageInStreaming": None,
                    "supportsStrictMode": None,
                    "supportedReasoningEfforts": None,
                },
                "limits": {
                    "max_output_tokens": None,
                    "images_per_request": None,
                    "video_per_request": None,
                },
                "readiness": {"state": "ready", "reason": "identity_passed"},
            }
        ],
    }
    assert list(by_id(observed.request("GET", "/v1/models/capabilities"))) == [
        "chat",
        "solo",
        "plain",
        "healthy",
        "dynamic",
    ]
    assert observed.request("GET", "/v1/models/capabilities?model=made-up").status == 404


def test_fingerprints(observed: Control) -> None:
    rows = by_id(observed.request("GET", "/v1/models/fingerprints"))
    assert rows["chat"] == {
        "object": "model_fingerprint",
        "id": "chat",
        "aliases": ["llm.chat"],
        "model": "qwen",
        "fingerprint": {
            "model_revision": "a1b2c3",
            "engine_version": "0.11.0",
            "image_digest": "sha256:" + "1" * 64,
            "config_fingerprint": "sha256:" + "2" * 64,
        },
        "served_identity": {"expected": "qwen", "observed": "qwen"},
        "readiness": {"state": "ready", "reason": "identity_passed"},
    }
    assert rows["healthy"]["served_identity"] == {"expected": "qwen", "observed": None}
    assert rows["healthy"]["fingerprint"] == dict.fromkeys(rows["chat"]["fingerprint"])
    # What an upstream calls its model is not repeated, not even where it is asked.
    assert rows["dynamic"]["served_identity"] == {"expected": None, "observed": None}


def test_health_in_configuration_order(observed: Control) -> None:
    observed.probes.answers["healthy"] = "refused"
    observed.probes.answers["solo"] = (200, b'{"object":"list","data":[{"id":"another"}]}')
    for tier_id in ("healthy", "solo"):
        observed.router.availability.probe_now(tier_id)
    rows = observed.request("GET", "/v1/health/tiers").json["tiers"]
    assert [(row["id"], row["role"], row["status"], row["reason"]) for row in rows] == [
        ("chat", "llm", "up", "identity_passed"),
        ("solo", "llm", "degraded", "identity_mismatch"),
        ("plain", "llm", "up", "availability_not_configured"),
        ("healthy", "llm", "down", "health_transport_refused"),
        ("dynamic", "llm", "up", "identity_passed"),
    ]
    assert [row["last_check"] is None for row in rows] == [False, False, True, False, False]


def test_the_status(observed: Control) -> None:
    observed.router.ledger.quiesce("plain")
    process.evidence().began = time.monotonic() - 3661
    answer = observed.request("GET", "/v1/router/status").json
    assert answer.pop("started_at").endswith("Z")
    assert answer.pop("uptime_seconds") in (3661, 3662)
    assert len(answer.pop("config_sha256")) == 64
    snapshot = observed.router.active
    assert snapshot is not None
    assert answer == {
        "object": "router_status",
        "package_version": VERSION,
        "model_aliases": ["llm.chat", "llm.solo"],
        "tier_counts": {"configured": 5, "enabled": 4},
        "snapshot_sha256": snapshot.snapshot.config_sha256,
        "owns_ledger": True,
        "draining": False,
    }


def test_the_configs_digest_is_of_what_decides_and_not_of_bytes(observed: Control) -> None:
    before = observed.request("GET", "/v1/router/status").json
    install(observed.router, CONFIG + "\n# a comment\n", snapshot_id=2)
    after = observed.request("GET", "/v1/router/status").json
    assert after["config_sha256"] == before["config_sha256"]
    assert after["snapshot_sha256"] != before["snapshot_sha256"]


def test_stats_and_requests_and_decisions_show_one_record(observed: Control) -> None:
    assert observed.request("GET", "/v1/requests/req-1").json == {
        "object": "router_request",
        "scope": "current_decision_log_buffer",
        "record": RECORD_JSON,
    }
    assert observed.request("GET", "/v1/decisions").json["records"] == [RECORD_JSON]
    stats = observed.request("GET", "/v1/stats?model=llm.solo&limit=10").json
    assert (stats["matching"], stats["limit"], stats["model"]) == (1, 10, "llm.solo")
    assert stats["routes"]["llm.solo"]["tokens"] == {"prompt": 7, "completion": 9, "total": 16}
    assert observed.request("GET", "/v1/stats?model=llm.chat").json["matching"] == 0
    assert observed.request("GET", "/v1/requests/unknown").status == 404
    assert observed.request("GET", "/v1/stats?model=made-up").status == 404
    for bad in ("0", "10001", "ten", "-1", "1e3", ""):
        assert observed.request("GET", f"/v1/stats?limit={bad}").status == 400, bad


def test_the_explanation(observed: Control) -> None:
    answer = observed.request("GET", "/v1/admin/explain?model=LLM.chat").json
    assert answer["summary"] == "A request for llm.chat is served now: 2 of 2 members can be chosen."
    observed.router.ledger.quiesce("chat", "kernel-upgrade")
    answer = observed.request("GET", "/v1/admin/explain?model=llm.chat").json
    assert (answer["served"], answer["summary"]) == (
        False,
        "A request for llm.chat is refused now by chat: quiesced, reason kernel-upgrade.",
    )
    assert observed.request("GET", "/v1/admin/explain").status == 400
    unknown = observed.request("GET", "/v1/admin/explain?model=planted")
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
        "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "text/plain",
        "image/png",
        "",
    ],
)
def test_metrics_are_text_whatever_is_asked_for(observed: Control, accept: str) -> None:
    answer = observed.request("GET", "/metrics", HTTP_ACCEPT=accept)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert metric(answer.body, 'anvil_requests_total{outcome="served",route="llm.solo",tier="solo"} 1.0')


@pytest.mark.requirement("C-R012", "C-R014")
def test_made_up_models_leave_no_trace(control: Control) -> None:
    """Ten thousand requests for models that nobody configured, through the front door."""
    client = Client()
    headers = {"HTTP_AUTHORIZATION": f"Bearer {control.token}", "content_type": "application/json"}

    def ask(number: int) -> None:
        body = json.dumps({"model": f"planted-{number}", "messages": [{"role": "user", "content": "x"}]})
        response = client.post("/v1/chat/completions", body, **headers)
        assert response.status_code == 404
        assert b"planted" not in response.content

    ask(0)
    names = [line.rpartition(b" ")[0] for line in control.request("GET", "/metrics").body.splitlines()]
    for number in range(1, 10_000):
        ask(number)
    text = control.request("GET", "/metrics").body
    assert [line.rpartition(b" ")[0] for line in text.splitlines()] == names
    assert metric(text, 'anvil_refusals_total{reason="unknown_model",tier=""} 10000.0')
    assert metric(text, 'anvil_key_requests_total{key="bootstrap"} 10000.0')
    assert b"planted" not in text
    assert len(process.log()) == 0
    assert control.request("GET", "/v1/stats").json["routes"] == {}


@pytest.mark.requirement("C-R012", "Q-R012", "Q-T005.2")
def test_no_answer_holds_an_address_a_secret_or_what_an_upstream_said(observed: Control) -> None:
    """Every endpoint, while upstreams answer with an intruder's name and fail with texts of their own."""
    observed.probes.answers["beta"] = (200, b'{"object":"list","data":[{"id":"intruder-model"}]}')
    observed.probes.answers["healthy"] = (500, b"Traceback planted-secret")
    for tier_id, member_id in (("chat", "member-b"), ("healthy", None)):
        observed.router.availability.probe_now(tier_id, member_id)
    secrets = ("http://", "alpha", "beta", "gpu-host", "intruder", "Traceback", "planted", "ANVIL_TOKEN")
    for path in PATHS:
        body = observed.request("GET", path).body.decode()
        assert [secret for secret in secrets if secret in body] == [], path
        assert observed.token is not None
        assert observed.token not in body
    degraded = {row["id"]: row["status"] for row in observed.request("GET", "/v1/health/tiers").json["tiers"]}
    assert (degraded["chat"], degraded["healthy"]) == ("up", "down")


class TestHousekeeping:
    """What the runtime does once a second, one turn at a time."""

    def test_a_turn_refreshes_pressure_and_closes_a_second(
        self, control: Control, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []

        class Owner(Cache):
            def snapshot(self, tier_id: str) -> None:
                asked.append(tier_id)

        monkeypatch.setattr(control.router, "_pressure", Owner(**{"member-a": ReplicaPressure()}))
        runtime.evidence.record(RECORD, OBSERVATION)
        runtime.keep_house_once()
        assert asked == ["chat"]
        (sample,) = runtime.evidence.history.samples("solo")
        assert (sample.requests, sample.active, sample.ceiling) == (1, 0, 3)
        assert len(runtime.evidence.history.samples("chat", "member-a")) == 1

    def test_a_step_that_fails_keeps_no_other_from_being_done(
        self, control: Control, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(tier_id: str) -> None:
            raise RuntimeError("no thread to be had")

        owner = Cache()
        owner.snapshot = fail  # type: ignore[method-assign]
        monkeypatch.setattr(control.router, "_pressure", owner)
        runtime.keep_house_once()
        assert len(runtime.evidence.history.samples("solo")) == 1

    def test_a_turn_without_a_configuration(self, runtime: Runtime) -> None:
        runtime.keep_house_once()
        assert runtime.evidence.history.samples("solo") == ()

    def test_the_runtime_shows_its_writers_and_hands_records_to_each(self, runtime: Runtime) -> None:
        assert anvil_site.runtime.get_runtime() is runtime
        assert sorted(runtime.evidence.writers()) == ["lines", "log", "table"]
        runtime.evidence.record(RECORD, OBSERVATION)
        assert [runtime.evidence.writers()[name].pending for name in ("lines", "table")] == [1, 1]
