"""A configuration with one tier of each shape, and owners of completed values that a test sets by hand."""

from collections.abc import Mapping

from admission.core import AdmissionSnapshot, MemberAdmissionSnapshot
from admission.replica_scheduler import PressureFreshness, PressureSignalState, ReplicaPressure
from routing.availability import AvailabilityResult
from routing.config import parse_config
from telemetry.engine_metrics import EngineFamily, MetricsSnapshot, MetricsStatus
from telemetry.live import LiveReading

SECRETS = (
    "gpu-host-1",
    "llm-a",
    "127.0.0.1",
    "10.9.8.7",
    "http://",
    "UPSTREAM_TOKEN",
    "ANVIL_TOKEN",
    "intruder-model",
    "vllm:num_requests_running",
    "Traceback",
    "planted-secret",
)
"""What must be in no projection, wherever it was planted."""

CONFIG = parse_config(b"""
[server]
auth_env = "ANVIL_TOKEN"

[router.model_routes]
"llm.primary" = "primary"
"llm.second" = "primary"
"llm.rotating" = "rotating"
"llm.direct" = "direct"

[[router.tiers]]
id = "direct"
base_url = "http://10.9.8.7:8100/v1"
auth_env = "UPSTREAM_TOKEN"
context_limit = 32768
model = "qwen3-32b"
max_concurrency = 6
max_output_tokens = 4096
tool_support = true
engine = "vllm"
quantization = "fp8"
[router.tiers.params.capacity]
gpu_role = "main"
gpu_name = "RTX 6000"
gpu_memory_total_mib = 97887
kv_cache_capacity_tokens = 100000
scheduler_max_num_seqs = 64
model_memory_gib = 30.5
media_admission_enabled = true
image_limit = 4
video_limit = 0
image_tokens_estimate = 1000
video_tokens_estimate = 8000
[router.tiers.params.capabilities]
modalities = ["text", "image"]
[router.tiers.params.capabilities.thinking]
supported = true
default = false
caller_override = true
max_tokens = 8192
[router.tiers.params.capabilities.compat]
supportsUsageInStreaming = true
supportsStrictMode = false
supportedReasoningEfforts = ["low", "high"]
[router.tiers.params.fingerprint]
model_revision = "abc"
engine_version = "0.11.0"

[[router.tiers]]
id = "rotating"
context_limit = 8192
model = "qwen3-8b"
model_identity = true
[router.tiers.replica_identity]
model_revision = "a1b2c3"
engine_version = "0.11.0"
image_digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
config_fingerprint = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
[[router.tiers.replicas]]
id = "one"
base_url = "http://127.0.0.1:8110/v1"
host_id = "gpu-host-1"
resource_id = "llm-a"
qualification_ref = "bench:1"
[[router.tiers.replicas]]
id = "two"
base_url = "http://127.0.0.1:8111/v1"
host_id = "gpu-host-1"
resource_id = "llm-b"
qualification_ref = "bench:1"

[[router.tiers]]
id = "primary"
context_limit = 8192
model = "qwen3-8b"
model_identity = true
replica_strategy = "capacity"
[router.tiers.replica_identity]
model_revision = "a1b2c3"
engine_version = "0.11.0"
image_digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
config_fingerprint = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
[[router.tiers.replicas]]
id = "member-b"
base_url = "http://127.0.0.1:8102/v1"
host_id = "gpu-host-1"
resource_id = "llm-c"
qualification_ref = "bench:1"
max_concurrency = 4
[[router.tiers.replicas]]
id = "member-a"
base_url = "http://127.0.0.1:8101/v1"
host_id = "gpu-host-1"
resource_id = "llm-d"
qualification_ref = "bench:1"
max_concurrency = 2

[[router.purpose_models]]
id = "embed"
kind = "embedding"
model = "bge"
base_url = "http://10.9.8.7:8200/v1"

[[router.purpose_models]]
id = "order"
kind = "rerank"
model = "bge-r"
base_url = "http://10.9.8.7:8201/v1"

[[router.audio_routes]]
id = "dictation"
purpose = "stt"
model = "whisper"
base_url = "http://10.9.8.7:8202/v1"

[[router.audio_routes]]
id = "voice"
purpose = "tts"
model = "kokoro"
base_url = "http://10.9.8.7:8203/v1"
source_sample_rate = 24000
""")

PASSED_DIRECT = AvailabilityResult(True, "health_passed", checked_at=1_767_225_600.5, latency_ms=12)
PASSED = AvailabilityResult(
    True,
    "identity_passed",
    expected_model="qwen3-8b",
    observed_model="qwen3-8b",
    checked_at=1_767_225_601.0,
    latency_ms=7,
)
MISMATCH = AvailabilityResult(
    False, "identity_mismatch", expected_model="qwen3-8b", checked_at=1_767_225_602.0, latency_ms=9
)
REFUSED = AvailabilityResult(
    False, "health_transport_refused", expected_model="qwen3-8b", checked_at=1_767_225_603.0
)


class Readiness:
    """Completed results, and none for what is not listed."""

    def __init__(self, results: Mapping[tuple[str, str | None], AvailabilityResult]) -> None:
        self.results = dict(results)

    def cached(self, tier_id: str, member_id: str | None = None) -> AvailabilityResult | None:
        return self.results.get((tier_id, member_id))


class Ledger:
    """One snapshot for each tier; counts how often each was read. No other method of the ledger exists."""

    def __init__(self, *snapshots: AdmissionSnapshot) -> None:
        self.snapshots = {snapshot.tier_id: snapshot for snapshot in snapshots}
        self.reads: list[str] = []

    def snapshot(self, tier_id: str) -> AdmissionSnapshot:
        self.reads.append(tier_id)
        return self.snapshots[tier_id]


class Pressure:
    """A cache that can only be peeked at: looking must neither queue a reading nor take a snapshot."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = values
        self.peeks: list[str] = []

    def peek(self, tier_id: str) -> dict[str, ReplicaPressure]:
        self.peeks.append(tier_id)
        return self.values[tier_id]  # type: ignore[return-value]

    def snapshot(self, tier_id: str) -> None:
        raise AssertionError("visibility must not schedule readings")


class Live:
    def __init__(self, **readings: LiveReading) -> None:
        self.readings = readings

    def latest(self, tier_id: str) -> LiveReading:
        return self.readings.get(tier_id, LiveReading(None, "pending"))


def member(
    member_id: str, active: int, ceiling: int | None, reason: str | None = None
) -> MemberAdmissionSnapshot:
    return MemberAdmissionSnapshot(
        member_id=member_id,
        state="admitting" if reason is None else "quiesced",
        reason=reason,
        active_requests=active,
        max_concurrency=ceiling,
        draining=reason is not None and active > 0,
    )


def tier(
    tier_id: str, *members: MemberAdmissionSnapshot, ceiling: int | None, reason: str | None = None
) -> AdmissionSnapshot:
    active = sum(each.active_requests for each in members)
    return AdmissionSnapshot(
        tier_id=tier_id,
        state="admitting" if reason is None else "quiesced",
        reason=reason,
        active_requests=active,
        draining=reason is not None and active > 0,
        max_concurrency=ceiling,
        member_active_requests=tuple((each.member_id, each.active_requests) for each in members),
        members=members,
    )


PRIMARY = tier("primary", member("member-a", 1, 2), member("member-b", 2, 4, "kernel-upgrade"), ceiling=6)
ROTATING = tier("rotating", member("one", 0, None), member("two", 0, None), ceiling=None)
DIRECT = AdmissionSnapshot("direct", "admitting", None, 0, False, 6, (), ())

FRESH = ReplicaPressure(
    PressureFreshness.FRESH, 1_250_000, PressureSignalState.VALID, PressureSignalState.MISSING
)
STALE = ReplicaPressure(PressureFreshness.STALE, None, PressureSignalState.VALID, PressureSignalState.VALID)

METRICS = LiveReading(
    MetricsSnapshot(
        status=MetricsStatus.OK,
        family=EngineFamily.VLLM,
        requests_running=3,
        requests_waiting=1,
        kv_cache_usage_fraction=0.25,
        preemptions_total=2,
        multimodal_cache_queries_total=10,
        multimodal_cache_hits_total=4,
    ),
    None,
)


def readiness() -> Readiness:
    return Readiness(
        {
            ("direct", None): PASSED_DIRECT,
            ("rotating", "one"): REFUSED,
            ("rotating", "two"): MISMATCH,
            ("primary", "member-a"): PASSED,
            ("primary", "member-b"): PASSED,
        }
    )
