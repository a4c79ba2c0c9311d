"""Bodies and heads that are nearly JSON, nearly text or nearly HTTP, at every door of a real router."""

from collections.abc import Callable

import pytest

from tests.live.harness import Engine, Router, await_rest, direct_tier, documents
from tests.live.raw import CHAT, RawConnection, build_request

pytestmark = pytest.mark.requirement("contract 2 wire")

RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"

NO_JSON = {
    "nested without end": b'{"model":"live.direct","messages":' + b"[" * 100_000,
    "nested too deep": b'{"model":"live.direct","messages":[],"x":' + b"[" * 3_000 + b"]" * 3_000 + b"}",
    "NaN": b'{"model":"live.direct","messages":[],"temperature":NaN}',
    "-Infinity": b'{"model":"live.direct","messages":[],"temperature":-Infinity}',
    "invalid UTF-8": b'{"model":"live.direct","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "invalid UTF-8 where nobody looks": b'{"model":"live.direct","messages":[],"x":"\xc3"}',
    "a byte order mark": b'\xef\xbb\xbf{"model":"live.direct","messages":[]}',
    "more behind it": b'{"model":"live.direct","messages":[]} {}',
    "nothing": b"",
    "an array": b"[]",
    "null": b"null",
}
"""No wire takes any of these."""

NO_ORDER = {
    "nested without end": b'{"action":' + b"[" * 10_000,
    "NaN": b'{"action":"drain","tier_id":"direct","timeout":NaN}',
    "a number without end": b'{"action":"drain","tier_id":"direct","timeout":1e999}',
    "an integer without end": b'{"action":"drain","tier_id":"direct","timeout":' + b"9" * 5_000 + b"}",
    "a doubled key": b'{"action":"quiesce","action":"drain","tier_id":"direct"}',
    "invalid UTF-8": b'{"action":"quiesce","tier_id":"\xff"}',
    "half a surrogate pair": b'{"action":"quiesce","tier_id":"\\ud800"}',
    "a byte order mark": b'\xef\xbb\xbf{"action":"quiesce","tier_id":"direct"}',
    "an array": b"[]",
}
"""No part of management takes any of these."""


@pytest.fixture
def router(make_router: Callable[..., Router], engine: Engine) -> Router:
    return make_router(documents(direct_tier(engine))).start()


def test_what_is_no_json_comes_to_no_engine(router: Router, engine: Engine) -> None:
    for name, body in NO_JSON.items():
        for path in (CHAT, RESPONSES, MESSAGES):
            answer = router.request("POST", path, body=body)
            assert answer.status == 400, (name, path)
            assert (answer.json().get("type") == "error") == (path == MESSAGES), (name, path)
    assert engine.stats()["received"] == 0
    assert "Traceback" not in router.log


def test_numbers_and_text_beyond_the_ordinary(router: Router, engine: Engine) -> None:
    """What the router reads must be sound; what it does not read is for the engine to judge."""

    def status(field: bytes, *, model: bytes = b"live.direct", content: bytes = b"hi") -> int:
        body = b'{"model":"%b","messages":[{"role":"user","content":"%b"}]%b}' % (model, content, field)
        return router.request("POST", CHAT, body=body).status

    assert status(b',"max_tokens":' + b"9" * 5_000) == 400
    assert status(b',"max_tokens":1e999') == 400
    assert status(b"", model=b"\\ud800") == 404
    assert status(b"", model=b"live.direct\\u0000") == 404
    assert engine.stats()["received"] == 0
    assert status(b',"seed":' + b"9" * 5_000) in (200, 400)
    assert status(b"", content=b"\\ud800") == 200
    # Of a doubled key the last one counts, for the router and for the engine: it is sent once.
    assert status(b',"model":"no.such"') == 404
    assert status(b',"model":"live.direct"', model=b"no.such") == 200
    await_rest(router)
    assert "Traceback" not in router.log


def test_what_is_no_order_changes_nothing(router: Router) -> None:
    doors = (
        ("POST", "/v1/admin/transition"),
        ("POST", "/v1/admin/keys"),
        ("POST", "/v1/admin/snapshots"),
        ("POST", "/v1/admin/promotions"),
        ("PUT", "/v1/admin/intent"),
    )
    for name, body in NO_ORDER.items():
        for method, path in doors:
            answer = router.request(method, path, body=body)
            assert answer.status == 400, (name, path, answer.status)
            assert isinstance(answer.json()["error"]["message"], str), (name, path)
    assert router.chat("live.direct").status == 200
    assert "Traceback" not in router.log


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        pytest.param([b"X: " + b"y" * 70_000], 431, id="one field too long"),
        pytest.param([b"X-%d: y" % number for number in range(101)], 431, id="too many fields"),
        pytest.param([b"X: \x00"], 400, id="a NUL"),
        pytest.param([b"X\xff: y"], 400, id="a name that is no token"),
    ],
)
def test_heads_beyond_their_bounds(
    router: Router,
    engine: Engine,
    connect: Callable[..., RawConnection],
    fields: list[bytes],
    status: int,
) -> None:
    head, _, body = build_request("POST", CHAT, body={"model": "live.direct"}).partition(b"\r\n\r\n")
    connection = connect(router.port)
    connection.send(b"\r\n".join([head, *fields, b"", b""]) + body)
    assert connection.read_response().status == status
    assert connection.await_end() in ("cut", "reset")
    assert engine.stats()["received"] == 0
