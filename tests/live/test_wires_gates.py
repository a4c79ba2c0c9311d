"""Whatever is counted on the chat path is counted on every wire, and told in the caller's dialect."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.harness import (
    Answer,
    Engine,
    Router,
    await_rest,
    decisions,
    direct_tier,
    documents,
    eventually,
    replica_tier,
)
from tests.live.wires_fleet import PATHS

pytestmark = pytest.mark.requirement("contract 2", "Q-R003", "C-R003", "C-R013", "cases 6")

EACH_WIRE = pytest.mark.parametrize("wire", PATHS)
EACH_DIALECT = pytest.mark.parametrize("dialect", ["openai", "anthropic"])
STRATEGIES = ("direct", "capacity")
POLICY = {
    "capacity": {
        "media_admission_enabled": True,
        "image_limit": 1,
        "video_limit": 1,
        "image_tokens_estimate": 10,
        "video_tokens_estimate": 10,
    }
}


class Site:
    """A router whose tiers take little: 64 tokens of context, no tools, one image, eight tokens out."""

    def __init__(self, router: Router, engines: list[Engine]) -> None:
        self.router = router
        self.engines = engines

    def post(self, wire: str, model: str, *, path: str = "", **fields: Any) -> Answer:
        body: dict[str, Any] = {"model": model, **said(wire, "hi"), **fields}
        return self.router.request("POST", PATHS[wire] + path, body=body)

    def received(self) -> int:
        return sum(engine.stats()["received"] for engine in self.engines)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("gates")
    engines = [Engine.start(directory, name) for name in ("a", "b")]
    tiers = []
    small: dict[str, Any] = {"context_limit": 64, "tool_support": False, "params": POLICY}
    small["max_output_tokens"] = 8
    for dialect in ("openai", "anthropic"):
        direct = {"tier_id": f"d-{dialect}", "alias": f"direct.{dialect}", "dialect": dialect}
        tiers.append(direct_tier(engines[0], **direct, **small))
        capacity = {"tier_id": f"c-{dialect}", "alias": f"capacity.{dialect}", "dialect": dialect}
        tiers.append(replica_tier(engines, **capacity, **small))
    router = Router(directory / "router", documents(*tiers))
    try:
        router.start()
        yield Site(router, engines)
    finally:
        router.stop()
        for engine in engines:
            engine.stop()


@pytest.fixture(autouse=True)
def _nothing_left(site: Site) -> Iterator[None]:
    for engine in site.engines:
        engine.reset()
    yield
    await_rest(site.router)


def said(wire: str, text: str, images: int = 0) -> dict[str, Any]:
    """What the user says, with as many images."""
    if wire == "chat":
        image: dict[str, Any] = {"type": "image_url", "image_url": {"url": "https://images.test/a.png"}}
    elif wire == "responses":
        image = {"type": "input_image", "image_url": "https://images.test/a.png", "detail": "auto"}
    else:
        image = {"type": "image", "source": {"type": "url", "url": "https://images.test/a.png"}}
    kind = "input_text" if wire == "responses" else "text"
    messages = [{"role": "user", "content": [{"type": kind, "text": text}, *[image] * images]}]
    if wire == "responses":
        return {"input": messages}
    return {"messages": messages, **({"max_tokens": 4} if wire == "messages" else {})}


def tools(wire: str) -> list[dict[str, Any]]:
    function = {"name": "f", "parameters": {"type": "object"}}
    if wire == "chat":
        return [{"type": "function", "function": function}]
    if wire == "responses":
        return [{"type": "function", **function}]
    return [{"name": "f", "input_schema": {"type": "object"}}]


def check_refusal(answer: Answer, wire: str, status: int, code: str, kind: str) -> None:
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert "x-should-retry" not in answer.headers
    body = answer.json()
    if wire == "messages":
        assert body == {"type": "error", "error": {"type": kind, "message": body["error"]["message"]}}
    else:
        assert body["error"]["code"] == code
        assert set(body["error"]) == {"message", "type", "param", "code"}


REFUSALS = {
    "over_context": (413, "context_length_exceeded", "request_too_large", "over_context"),
    "too_many_images": (413, "media_limit_exceeded", "request_too_large", "media_admission_image_limit"),
    "tools": (400, "tools_unsupported", "invalid_request_error", "tools_unsupported"),
}


@EACH_WIRE
@EACH_DIALECT
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("refused", REFUSALS)
def test_gates_refuse_before_anything_is_sent(
    site: Site, wire: str, dialect: str, strategy: str, refused: str
) -> None:
    status, code, kind, reason = REFUSALS[refused]
    alias = f"{strategy}.{dialect}"
    if refused == "over_context":
        fields = said(wire, "x" * 513)
    elif refused == "tools":
        fields = {"tools": tools(wire)}
    else:
        fields = said(wire, "see", images=2)

    answer = site.post(wire, alias, **fields)

    check_refusal(answer, wire, status, code, kind)
    assert site.received() == 0
    record = the_record(site.router, answer.headers["x-request-id"])
    assert (record["kind"], record["route"], record["served_tier"]) == (wire, alias, "-")
    if strategy == "direct":
        assert [(one["outcome"], one["reason"]) for one in record["attempts"]] == [("skipped", reason)]
    else:
        assert record["attempts"] == []
        assert record["replica_selection"] == "request_rejected"


def the_record(router: Router, request_id: str) -> dict[str, Any]:
    (record,) = [record for record in decisions(router) if record["request_id"] == request_id]
    return record


@EACH_WIRE
@EACH_DIALECT
def test_what_the_gates_allow_arrives(site: Site, wire: str, dialect: str) -> None:
    answer = site.post(wire, f"direct.{dialect}", **said(wire, "see", images=1))

    assert answer.status == 200, answer.body
    assert site.received() == 1


@EACH_WIRE
@EACH_DIALECT
def test_the_output_cap_is_applied_and_told(site: Site, wire: str, dialect: str) -> None:
    name = {"chat": "max_completion_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}[wire]
    answer = site.post(wire, f"capacity.{dialect}", **{name: 50})

    assert answer.status == 200, answer.body
    assert answer.headers["x-anvil-max-tokens-requested"] == "50"
    assert answer.headers["x-anvil-max-tokens-effective"] == "8"
    assert answer.headers["warning"] == '299 anvil "output limited to 8 tokens"'
    assert answer.headers["x-anvil-tier"] == f"c-{dialect}"
    assert answer.headers["x-anvil-member"] in ("member-a", "member-b")


@EACH_WIRE
@pytest.mark.requirement("cases 28", "cases 29")
def test_the_front_door_speaks_the_callers_dialect(site: Site, wire: str) -> None:
    unknown = site.post(wire, "nobody")
    check_refusal(unknown, wire, 404, "model_not_found", "not_found_error")

    path = PATHS[wire]
    malformed = site.router.request("POST", path, body=b'{"model": ')
    check_refusal(malformed, wire, 400, "malformed_json", "invalid_request_error")

    wrong_method = site.router.request("GET", path)
    check_refusal(wrong_method, wire, 405, "method_not_allowed", "invalid_request_error")
    assert wrong_method.headers["allow"] == "POST"

    wrong_key = site.router.request("POST", path, body={}, headers={"Authorization": "Bearer wrong"})
    check_refusal(wrong_key, wire, 401, "invalid_api_key", "authentication_error")
    assert site.received() == 0


@EACH_WIRE
def test_a_quiesced_tier_is_unavailable_on_every_wire(site: Site, wire: str) -> None:
    def transition(action: str) -> None:
        body = {"action": action, "tier_id": "d-openai", "confirm": True, "dry_run": False}
        answer = site.router.request("POST", "/v1/admin/transition", body=body)
        assert answer.status == 200, answer.body

    transition("quiesce")
    try:
        answer = site.post(wire, "direct.openai")
        check_refusal(answer, wire, 503, "model_unavailable", "overloaded_error")
        assert answer.headers["retry-after"] == "1"
    finally:
        eventually(lambda: transition("readmit") or True)
    assert site.received() == 0


def test_a_count_of_tokens_needs_no_upstream_and_leaves_no_record(site: Site) -> None:
    before = len(decisions(site.router))

    answer = site.post("messages", "direct.openai", path="/count_tokens", **said("messages", "x" * 400))

    assert answer.status == 200
    assert answer.json() == {"input_tokens": 100, "estimate": True}
    assert site.received() == 0
    assert len(decisions(site.router)) == before
