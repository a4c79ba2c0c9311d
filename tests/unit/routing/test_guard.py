"""The replica lifecycle guard on parsed configurations."""

import pytest

from routing.config import RouterConfig, parse_config
from routing.guard import (
    ReplicaLifecycleConfigurationUnavailable,
    ReplicaLifecycleError,
    ReplicaLifecycleUnsupported,
    refuse_replica_tiers,
)

pytestmark = pytest.mark.requirement("Q-T012", "Q-T012.1")

IDENTITY = f"""
[router.tiers.replica_identity]
model_revision = "a1b2c3"
engine_version = "0.11.0"
image_digest = "sha256:{"1" * 64}"
config_fingerprint = "sha256:{"2" * 64}"
"""


def replica(tier_id: str) -> str:
    members = "".join(
        f"""
[[router.tiers.replicas]]
id = "member-{name}"
base_url = "http://{tier_id}-{name}/v1"
host_id = "gpu-host"
resource_id = "{tier_id}-{name}"
qualification_ref = "bench:run-1"
"""
        for name in "ab"
    )
    return f"""
[[router.tiers]]
id = "{tier_id}"
context_limit = 4096
model = "qwen"
model_identity = true
{IDENTITY}{members}"""


def direct(tier_id: str) -> str:
    return f"""
[[router.tiers]]
id = "{tier_id}"
base_url = "http://{tier_id}/v1"
context_limit = 4096
model = "qwen"
"""


def config(*tiers: str) -> RouterConfig:
    return parse_config("\n".join(tiers).encode())


MIXED = config(direct("solo"), replica("chat"), direct("other"), replica("pair"))


def refusal(found: RouterConfig | None, *affected: str) -> str:
    with pytest.raises(ReplicaLifecycleError) as caught:
        refuse_replica_tiers(found, affected)
    error = caught.value
    assert str(error) == error.code
    assert error.args == (error.code,)
    assert error.__cause__ is None
    assert error.__context__ is None
    return error.code


def test_direct_tiers_pass_and_unrelated_replica_tiers_do_not_matter() -> None:
    refuse_replica_tiers(MIXED, ["solo"])
    refuse_replica_tiers(MIXED, ["solo", "other", "solo"])


@pytest.mark.parametrize("affected", [["chat"], ["solo", "chat"], ["chat", "pair"], iter(["pair"])])
def test_a_replica_tier_among_the_affected_is_refused_with_the_fixed_code(affected: list[str]) -> None:
    assert refusal(MIXED, *affected) == "replica_lifecycle_unsupported"


def test_a_missing_configuration_is_not_one_of_direct_tiers() -> None:
    assert refusal(None, "solo") == "replica_lifecycle_configuration_unavailable"


@pytest.mark.parametrize("affected", [["absent"], ["solo", "absent"], ["chat", "absent"], [""], ["SOLO"]])
def test_an_absent_tier_is_not_a_direct_one(affected: list[str]) -> None:
    assert refusal(MIXED, *affected) == "replica_lifecycle_configuration_unavailable"


@pytest.mark.parametrize("found", [None, MIXED])
def test_what_affects_no_tier_needs_no_configuration(found: RouterConfig | None) -> None:
    refuse_replica_tiers(found, [])


def test_both_refusals_are_value_errors_with_their_fixed_text() -> None:
    assert str(ReplicaLifecycleUnsupported()) == "replica_lifecycle_unsupported"
    unavailable = ReplicaLifecycleConfigurationUnavailable()
    assert str(unavailable) == "replica_lifecycle_configuration_unavailable"
    assert isinstance(ReplicaLifecycleUnsupported(), ValueError)
    assert isinstance(unavailable, ValueError)
