"""The demo's documents: what the router is given for three engines on neighbouring ports."""

import pytest

from demo.fleet import MEMBERS, render
from routing.snapshot import validate_snapshot


@pytest.mark.requirement("Q-R003", "Q-R004", "Q-R005")
def test_the_documents_are_a_valid_snapshot() -> None:
    config, topology = render(9101)
    snapshot = validate_snapshot(config, topology)
    assert (snapshot.tier_count, snapshot.replica_tier_count, snapshot.replica_member_count) == (2, 1, 2)
    assert dict(snapshot.config.model_routes) == {"demo.chat": "chat", "demo.direct": "direct"}
    assert snapshot.config.server.auth_env == "ANVIL_TOKEN"
    chat, direct = snapshot.config.tier("chat"), snapshot.config.tier("direct")
    assert [(one.id, one.base_url, one.max_concurrency) for one in chat.replicas] == [
        ("member-a", "http://127.0.0.1:9101/v1", 2),
        ("member-b", "http://127.0.0.1:9102/v1", 2),
    ]
    assert (chat.strategy, chat.model, chat.health_path, chat.model_identity) == (
        "capacity",
        "demo-model",
        "/health",
        True,
    )
    assert (direct.base_url, direct.model, direct.model_identity) == (
        "http://127.0.0.1:9103/v1",
        "demo-model",
        True,
    )


def test_engines_take_three_ports_in_a_fixed_order() -> None:
    assert MEMBERS == ("member-a", "member-b", "direct")
    assert b"127.0.0.1:65535" in render(65_533)[0]


@pytest.mark.parametrize("port", [0, 65_534])
def test_a_base_port_without_room_for_three_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="three ports"):
        render(port)
