"""What the front door refuses before it reads, and what it answers where there is nothing.

Regressions: strangers could fill the body budget; an unknown path told of a missing CSRF token; who had
closed its sending side got an empty 400; a body could take for ever, a byte at a time.
"""

import time
from collections.abc import Iterator

import pytest

from tests.live.harness import Engine, Router, chat_body, direct_tier, documents, eventually
from tests.live.raw import CHAT, RawConnection, Response, build_request

HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: anvil\r\nAuthorization: Bearer wrong\r\n"
    "Content-Length: 1000000\r\n"
)


SILENCE = 1.0
MIN_RATE = 1000


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine.start(tmp_path_factory.mktemp("engine"))
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[Router]:
    directory = tmp_path_factory.mktemp("front-door")
    environ = {"ANVIL_BODY_SILENCE": str(SILENCE), "ANVIL_BODY_MIN_RATE": str(MIN_RATE)}
    router = Router(directory, documents(direct_tier(engine, max_concurrency=1)), environ=environ).start()
    yield router
    router.stop()


def record(router: Router, request_id: str) -> dict[str, object]:
    """The record of a request, which may be on its way still."""
    answer = router.request("GET", f"/v1/requests/{request_id}")
    assert answer.status == 200, answer.body
    found: dict[str, object] = answer.json()["record"]
    return found


@pytest.mark.requirement("contract 2", "house 2")
@pytest.mark.parametrize("more", ["\r\nx", "Expect: 100-continue\r\n\r\n"])
def test_a_stranger_is_refused_before_its_body_is_read(router: Router, more: str) -> None:
    with RawConnection(router.port, timeout=5) as caller:
        caller.send((HEAD + "X-Request-Id: stranger-1\r\n" + more).encode())
        answer = caller.read_head()
    assert (answer.status, answer.get("x-request-id")) == (401, "stranger-1")


@pytest.mark.requirement("contract 2")
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "GET"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions/"])
def test_an_unknown_path_is_not_found_whatever_the_method(router: Router, method: str, path: str) -> None:
    answer = router.request(method, path)
    assert answer.status == 404
    assert answer.json()["error"]["code"] == "not_found"


@pytest.mark.requirement("contract 4")
@pytest.mark.parametrize("path", ["/metrics", "/v1/decisions", "/v1/models"])
def test_programs_may_use_any_name_of_the_machine(router: Router, path: str) -> None:
    with RawConnection(router.port, timeout=5) as caller:
        head = f"GET {path} HTTP/1.1\r\nHost: gpu-host.lan\r\nAuthorization: Bearer {router.token}\r\n\r\n"
        caller.send(head.encode())
        assert caller.read_head().status == 200


@pytest.mark.requirement("contract 2")
def test_the_model_list_takes_no_parameter_and_is_never_stored(router: Router) -> None:
    refused = router.request("GET", "/v1/models?x=1")
    missing = router.request("GET", "/v1/models/nope")
    assert (refused.status, missing.status) == (400, 404)
    assert refused.headers["cache-control"] == missing.headers["cache-control"] == "no-store"


@pytest.mark.requirement("contract 2")
@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
@pytest.mark.parametrize("method", ["POST", "OPTIONS"])
def test_health_takes_no_other_method(router: Router, method: str, path: str) -> None:
    """The refusal once said ``{"status": "ok"}``."""
    answer = router.request(method, path)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.requirement("house 4")
@pytest.mark.parametrize("stream", [True, False])
def test_who_closes_its_side_after_a_whole_request_is_gone_and_gets_nothing(
    router: Router, engine: Engine, stream: bool
) -> None:
    engine.reset()
    engine.fault("stall_before_headers", count=1)
    request_id = f"half-closed-{stream}"
    with RawConnection(router.port, timeout=5) as caller:
        caller.post(chat_body("live.direct", stream=stream), headers={"X-Request-Id": request_id})
        engine.await_stats(stalled=1)
        caller.half_close()
        assert caller.receive() == b""
    attempts = eventually(lambda: record(router, request_id))["attempts"]
    assert [(one["outcome"], one["reason"]) for one in attempts] == [("error", "client_disconnected")]


@pytest.mark.requirement("house 4", "contract 3")
def test_who_leaves_while_it_waits_for_a_place_is_recorded_as_gone_and_never_sent(
    router: Router, engine: Engine
) -> None:
    engine.reset()
    engine.fault("stall_before_headers", count=1)
    with RawConnection(router.port, timeout=5) as first, RawConnection(router.port, timeout=5) as second:
        first.post(chat_body("live.direct"))
        engine.await_stats(stalled=1)
        second.post(chat_body("live.direct"), headers={"X-Request-Id": "left-waiting"})
        second.half_close()
        assert second.receive() == b""
        attempts = eventually(lambda: record(router, "left-waiting"))["attempts"]
        assert [(one["outcome"], one["reason"]) for one in attempts] == [("error", "client_disconnected")]
        assert engine.stats()["received"] == 1
        engine.clear()
        assert first.read_response().status == 200


@pytest.mark.requirement("house 2")
@pytest.mark.parametrize("left_out", [10, 200], ids=["in the body", "in the head"])
def test_who_closes_its_side_before_its_request_is_whole_gets_nothing_and_is_not_counted(
    router: Router, left_out: int
) -> None:
    request = build_request("POST", CHAT, body=chat_body("live.direct"))
    before = router.request("GET", "/metrics").body
    with RawConnection(router.port, timeout=5) as caller:
        caller.send(request[:-left_out])
        caller.half_close()
        assert caller.receive() == b""
    after = router.request("GET", "/metrics").body
    counted = (b"anvil_requests_total", b"anvil_refusals_total", b"anvil_key_requests_total")
    assert [line for line in before.splitlines() if line.startswith(counted)] == [
        line for line in after.splitlines() if line.startswith(counted)
    ]


@pytest.mark.requirement("house 2")
@pytest.mark.parametrize(
    ("path", "beginning"),
    [(CHAT, b"{"), (CHAT, b"{" + b" " * 100_000), ("/v1/messages", b"{"), ("/v1/admin/transition", b"{")],
    ids=["at once", "after a burst", "in Anthropic's dialect", "of the management"],
)
def test_a_body_that_trickles_gets_408_and_the_end_of_its_connection(
    router: Router, path: str, beginning: bytes
) -> None:
    request = build_request("POST", path, body=bytes(200_000))
    began = time.monotonic()
    with RawConnection(router.port, timeout=SILENCE / 5) as caller:
        caller.send(request[:-200_000] + beginning)
        # A byte at a time, as often as the reader finds nothing.
        for _ in range(50):
            caller.send(b" ")
            try:
                answer = caller.read_response()
            except TimeoutError:
                continue
            break
    assert SILENCE <= time.monotonic() - began < SILENCE + 5
    assert (answer.status, answer.head.get("connection")) == (408, "close")
    error = answer.json()["error"]
    assert error["message"] == "The request body came too slowly."
    if path == CHAT:
        assert error["code"] == "request_timeout"


@pytest.mark.requirement("house 2")
def test_a_body_that_comes_slowly_but_steadily_is_served(router: Router) -> None:
    """Longer than the silence that is allowed, at twice the rate that is asked for."""
    request = build_request("POST", CHAT, body=chat_body("live.direct", padding="x" * 3000))
    step = int(MIN_RATE * 2 * SILENCE / 4)
    with RawConnection(router.port, timeout=SILENCE / 4) as caller:
        for at in range(0, len(request), step):
            caller.send(request[at : at + step])
            if at + step < len(request):
                with pytest.raises(TimeoutError):
                    caller.receive()
        assert read_patiently(caller).status == 200


def read_patiently(caller: RawConnection) -> Response:
    """Its answer, however often its short timeout passes before."""
    for _ in range(40):
        try:
            return caller.read_response()
        except TimeoutError:
            continue
    raise AssertionError("no answer")
