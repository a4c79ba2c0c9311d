"""The semantic gates and the output cap, at their edges."""

from http import HTTPStatus

import pytest

from routing.config import RouterConfig, Tier, parse_config
from routing.gates import Demand, GateRefusal, check_gates, context_needs_count, output_cap
from routing.records import REASONS
from routing.rules import FrozenJSON

POLICY: dict[str, FrozenJSON] = {
    "media_admission_enabled": True,
    "image_limit": 4,
    "video_limit": 1,
    "image_tokens_estimate": 100,
    "video_tokens_estimate": 500,
}


def tier(*, context_limit: int = 1000, tool_support: bool = False, **capacity: FrozenJSON) -> Tier:
    return Tier(
        id="primary",
        base_url="http://127.0.0.1:8101/v1",
        model="m",
        context_limit=context_limit,
        tool_support=tool_support,
        params={"capacity": capacity} if capacity else {},
    )


OVER_CONTEXT = GateRefusal(
    status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    code="context_length_exceeded",
    reason="over_context",
    message="The request is larger than this model's context of 1000 tokens.",
)
TOOLS = GateRefusal(
    status=HTTPStatus.BAD_REQUEST,
    code="tools_unsupported",
    reason="tools_unsupported",
    message="This model does not support tools.",
    param="tools",
)


# Context -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text_bytes", [0, 1, 7999, 8000])
def test_prompt_within_the_low_estimate_passes(text_bytes: int) -> None:
    """Contract 2: the gate must not refuse what the engine would take."""
    assert check_gates(tier(), Demand(text_bytes=text_bytes)) is None


@pytest.mark.parametrize("text_bytes", [8001, 8008, 10**12])
def test_prompt_over_even_the_low_estimate_is_refused(text_bytes: int) -> None:
    assert check_gates(tier(), Demand(text_bytes=text_bytes)) == OVER_CONTEXT


@pytest.mark.parametrize(("body_bytes", "needed"), [(0, False), (8000, False), (8001, True)])
def test_small_body_spares_the_count(body_bytes: int, needed: bool) -> None:
    assert context_needs_count(tier(), body_bytes) is needed


@pytest.mark.parametrize(
    ("images", "videos", "text_bytes", "refused"),
    [(4, 1, 800, False), (4, 1, 801, True), (1, 0, 7200, False), (1, 0, 7201, True), (0, 1, 4001, True)],
)
def test_media_weigh_in_where_media_admission_is_on(
    images: int, videos: int, text_bytes: int, refused: bool
) -> None:
    demand = Demand(text_bytes=text_bytes, images=images, videos=videos)
    assert check_gates(tier(**POLICY), demand) == (OVER_CONTEXT if refused else None)


@pytest.mark.parametrize("capacity", [{}, {**POLICY, "media_admission_enabled": False}])
def test_media_weigh_nothing_where_it_is_off(capacity: dict[str, FrozenJSON]) -> None:
    assert check_gates(tier(**capacity), Demand(text_bytes=8000, images=1000, videos=1000)) is None


# Media ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "videos", "reason", "message"),
    [
        (5, 0, "media_admission_image_limit", "Too many images: this model takes 4 a request."),
        (0, 2, "media_admission_video_limit", "Too many videos: this model takes 1 a request."),
        (5, 2, "media_admission_image_limit", "Too many images: this model takes 4 a request."),
    ],
)
def test_media_over_a_limit_are_refused(images: int, videos: int, reason: str, message: str) -> None:
    refusal = check_gates(tier(context_limit=10_000, **POLICY), Demand(images=images, videos=videos))
    assert refusal is not None
    assert (refusal.status, refusal.code, refusal.reason, refusal.message) == (
        413,
        "media_limit_exceeded",
        reason,
        message,
    )


@pytest.mark.parametrize(("images", "videos"), [(4, 0), (0, 1), (4, 1)])
def test_media_at_their_limits_pass(images: int, videos: int) -> None:
    assert check_gates(tier(**POLICY), Demand(images=images, videos=videos)) is None


def test_limit_of_zero_refuses_the_first() -> None:
    refusal = check_gates(tier(**{**POLICY, "image_limit": 0}), Demand(images=1))
    assert refusal is not None
    assert refusal.reason == "media_admission_image_limit"


@pytest.mark.parametrize(
    "missing", ["image_limit", "video_limit", "image_tokens_estimate", "video_tokens_estimate"]
)
@pytest.mark.parametrize("demand", [Demand(images=1), Demand(videos=1)], ids=["image", "video"])
def test_incomplete_policy_refuses_media(missing: str, demand: Demand) -> None:
    capacity = {key: value for key, value in POLICY.items() if key != missing}
    refusal = check_gates(tier(**capacity), demand)
    assert refusal == GateRefusal(
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        code="media_limit_exceeded",
        reason="media_admission_invalid_policy",
        message="This model's media policy is incomplete.",
    )


def test_incomplete_policy_lets_text_pass() -> None:
    assert check_gates(tier(media_admission_enabled=True), Demand(text_bytes=8000)) is None


@pytest.mark.parametrize("value", ["4", 4.0, True])
def test_number_of_another_type_makes_the_policy_incomplete(value: FrozenJSON) -> None:
    refusal = check_gates(tier(**{**POLICY, "image_limit": value}), Demand(images=1))
    assert refusal is not None
    assert refusal.reason == "media_admission_invalid_policy"


# Tools and order -----------------------------------------------------------------------------------------


def test_tools_need_a_tier_that_supports_them() -> None:
    assert check_gates(tier(), Demand(tools=True)) == TOOLS
    assert check_gates(tier(tool_support=True), Demand(tools=True)) is None


def test_first_gate_that_refuses_stands() -> None:
    """The order is context, media, tools."""
    both = tier(context_limit=1000, **POLICY)
    everything = Demand(text_bytes=8001, images=5, tools=True)
    assert check_gates(both, everything) == OVER_CONTEXT
    refusal = check_gates(both, Demand(text_bytes=1, images=5, tools=True))
    assert refusal is not None
    assert refusal.reason == "media_admission_image_limit"
    assert check_gates(both, Demand(text_bytes=1, images=4, tools=True)) == TOOLS


@pytest.mark.requirement("Q-R010")
def test_members_of_a_replica_tier_share_the_gates() -> None:
    """Every member's view refuses and admits what the tier does."""
    config = _replica_config()
    primary = config.tier("primary")
    for demand in (Demand(text_bytes=8001), Demand(images=5), Demand(tools=True), Demand(text_bytes=8000)):
        expected = check_gates(primary, demand)
        assert [check_gates(primary.member_view(name), demand) for name in primary.member_ids] == [
            expected
        ] * 2


def test_every_refusal_has_a_reason_of_the_evidence() -> None:
    refusals = [
        check_gates(tier(**POLICY), Demand(text_bytes=8001)),
        check_gates(tier(**POLICY), Demand(images=5)),
        check_gates(tier(**POLICY), Demand(videos=2, text_bytes=0)),
        check_gates(tier(context_limit=10_000, **POLICY), Demand(videos=2)),
        check_gates(tier(media_admission_enabled=True), Demand(images=1)),
        check_gates(tier(), Demand(tools=True)),
    ]
    assert {refusal.reason for refusal in refusals if refusal is not None} == {
        "over_context",
        "media_admission_image_limit",
        "media_admission_video_limit",
        "media_admission_invalid_policy",
        "tools_unsupported",
    }
    assert {refusal.reason for refusal in refusals if refusal is not None} <= REASONS["skipped"]


# Output cap ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ceiling", "asked", "limit", "clamped"),
    [
        (None, None, None, False),
        (None, 100_000, 100_000, False),
        (4096, 1, 1, False),
        (4096, 4096, 4096, False),
        (4096, 4097, 4096, True),
        (4096, None, 4096, True),
    ],
)
def test_output_cap_lowers_and_fills_in(
    ceiling: int | None, asked: int | None, limit: int | None, clamped: bool
) -> None:
    assert output_cap(ceiling, asked) == (limit, clamped)


def _replica_config() -> RouterConfig:
    members = "".join(
        f"""
        [[router.tiers.replicas]]
        id = "member-{letter}"
        base_url = "http://127.0.0.1:{port}/v1"
        host_id = "gpu-host-1"
        resource_id = "llm-{letter}"
        qualification_ref = "bench"
        """
        for letter, port in (("a", 8101), ("b", 8102))
    )
    return parse_config(
        f"""
        [router.model_routes]
        "llm.primary" = "primary"
        [[router.tiers]]
        id = "primary"
        context_limit = 1000
        model = "m"
        model_identity = true
        health_path = "/health"
        [router.tiers.params.capacity]
        media_admission_enabled = true
        image_limit = 4
        video_limit = 1
        image_tokens_estimate = 100
        video_tokens_estimate = 500
        [router.tiers.replica_identity]
        model_revision = "a1b2c3"
        engine_version = "0.11.0"
        image_digest = "sha256:{"0" * 64}"
        config_fingerprint = "sha256:{"1" * 64}"
        {members}
        """.encode()
    )
