"""What a stranger can make the router do to others, and what it tells: nothing of both."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.harness import (
    Engine,
    Router,
    chat_body,
    direct_tier,
    documents,
    eventually,
    replica_tier,
    request,
)
from tests.live.raw import CHAT, TOKEN, RawConnection, build_request

pytestmark = pytest.mark.requirement("contract 2 wire", "contract 2 authentication")

UPSTREAM_SECRET = "sk-upstream-1234567890abcdef"
PROMPT = "a-prompt-that-nobody-may-repeat"
HOSTILE = {
    "X-Forwarded-Host": "evil.example",
    "X-Forwarded-For": "192.0.2.7",
    "X-Original-URL": "http://evil.example/",
    "X-Rewrite-Url": "http://evil.example/",
    "X-Upstream-Url": "http://evil.example/v1",
    "X-Anvil-Tier": "direct",
    "X-Anvil-Member": "member-b",
    "Proxy-Authorization": "Basic ZXZpbA==",
    "Cookie": "session=evil",
    "Forwarded": "host=evil.example",
    "Via": "1.1 evil.example",
    "Te": "trailers",
}


@pytest.fixture
def engines(make_engine: Callable[..., Engine]) -> list[Engine]:
    return [make_engine("engine-a"), make_engine("engine-b")]


@pytest.fixture
def router(make_router: Callable[..., Router], engines: list[Engine]) -> Router:
    tiers = (
        replica_tier(engines, auth_env="UPSTREAM_TOKEN"),
        direct_tier(engines[0], auth_env="UPSTREAM_TOKEN"),
    )
    environ = {
        "UPSTREAM_TOKEN": UPSTREAM_SECRET,
        "http_proxy": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "ALL_PROXY": "http://127.0.0.1:9",
    }
    installed = documents(*tiers, server={"decision_log_path": "decisions.jsonl"})
    return make_router(installed, environ=environ).start()


def test_nothing_of_a_callers_head_reaches_an_upstream(router: Router, engines: list[Engine]) -> None:
    """Nor do the proxies that the environment names: the answer comes from the engine itself."""
    body = chat_body("live.direct", base_url="http://evil.example/v1", api_base="http://evil.example")
    answer = router.request("POST", CHAT, body=body, headers=HOSTILE)

    assert answer.status == 200
    (seen,) = [each for each in engines[0].stats()["last_requests"] if each["path"] == CHAT]
    assert set(seen["headers"]) == {
        "host",
        "user-agent",
        "accept",
        "accept-encoding",
        "authorization",
        "content-type",
        "content-length",
    }
    assert seen["headers"]["host"] == f"127.0.0.1:{engines[0].port}"
    assert seen["headers"]["authorization"] == f"Bearer {UPSTREAM_SECRET}"
    assert "evil" not in str(seen["headers"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_redirect_of_an_upstream_is_not_followed_and_sets_nothing(
    router: Router, engines: list[Engine], stream: bool
) -> None:
    headers = {"location": f"{engines[1].url}/chat/completions", "set-cookie": "evil=1"}
    engines[0].fault("http_error", count=1, status=307, headers=headers)
    before = engines[1].stats()["received"]

    answer = router.chat("live.direct", stream=stream)

    assert answer.status == 502
    assert engines[1].stats()["received"] == before
    assert not {"location", "set-cookie"} & set(answer.headers)
    assert str(engines[1].port).encode() not in answer.body


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example/v1/chat/completions",
        "/v1/chat/completions/../../admin/",
        "/v1/%2e%2e/healthz",
        "evil.example:443",
        "*",
    ],
)
def test_a_request_target_names_no_place(
    router: Router, engines: list[Engine], connect: Callable[..., RawConnection], target: str
) -> None:
    connection = connect(router.port)
    connection.send(build_request("POST", target, body=chat_body("live.direct")))
    assert connection.read_response().status in (400, 404)
    assert engines[0].stats()["received"] == 0


def test_an_absolute_target_counts_for_its_path_alone(
    router: Router, engines: list[Engine], connect: Callable[..., RawConnection]
) -> None:
    """RFC 9112, 3.2.2 has servers take it; the host in it leads nowhere."""
    connection = connect(router.port)
    target = "http://evil.example/v1/chat/completions"
    connection.send(build_request("POST", target, body=chat_body("live.direct")))
    assert connection.read_response().head.get("x-anvil-tier") == "direct"
    (seen,) = [each for each in engines[0].stats()["last_requests"] if each["path"] == CHAT]
    assert seen["headers"]["host"] == f"127.0.0.1:{engines[0].port}"


def test_a_smuggled_request_is_never_served(
    router: Router, engines: list[Engine], connect: Callable[..., RawConnection]
) -> None:
    """Each of these is one request to one reader and two to another. Here it is none, and the end."""
    inner = build_request("POST", CHAT, body=chat_body("live.direct"))
    outer = build_request("POST", CHAT, body=b"").replace(b"Content-Length: 0\r\n", b"")
    head, _, _ = outer.partition(b"\r\n\r\n")
    for extra in (
        b"Content-Length: 4\r\nTransfer-Encoding: chunked",
        b"Content-Length: 0\r\nContent-Length: %d" % len(inner),
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding : chunked",
        b"X: y\r\n Transfer-Encoding: chunked",
        b"X: y\nContent-Length: 0",
        b"Content-Length: 0\rX: y",
    ):
        connection = connect(router.port)
        connection.send(head + b"\r\n" + extra + b"\r\n\r\n0\r\n\r\n" + inner)
        answer = connection.read_response()
        assert answer.status in (400, 501), extra
        assert connection.await_end() in ("cut", "reset"), extra
    assert engines[0].stats()["received"] == 0


def test_no_surface_tells_a_secret_a_prompt_or_a_place(router: Router, engines: list[Engine]) -> None:
    """After answers, refusals, failures and a crash of the worker."""
    messages = [{"role": "user", "content": PROMPT}]
    engines[0].fault("http_500", count=1)
    engines[0].fault("malformed_event", count=1)
    engines[0].fault("reset", count=1)
    for stream in (True, False):
        for alias in ("live.direct", "live.chat", "no.such.alias"):
            for _ in range(2):
                router.chat(alias, messages=messages, stream=stream)
    request(
        router.port,
        "POST",
        CHAT,
        body=chat_body("live.chat"),
        headers={"Authorization": "Bearer wrong-key-1"},
    )
    made = router.request("POST", "/v1/admin/keys", body={"name": "chat", "scopes": ["infer"]}).json()
    router.request(
        "POST", CHAT, body=chat_body("live.chat"), headers={"Authorization": f"Bearer {made['key']}"}
    )

    surfaces = {
        path: router.request("GET", path).body.decode()
        for path in (
            "/v1/decisions?limit=500",
            "/metrics",
            "/v1/router/status",
            "/v1/stats",
            "/v1/health/tiers",
            "/v1/models",
            "/v1/models/capacity",
            "/v1/admin/keys",
            "/v1/admin/transition",
        )
    }
    file = router.directory / "data" / "decisions.jsonl"
    eventually(lambda: file.exists() and file.stat().st_size > 0)
    surfaces["file"] = file.read_text()
    surfaces["log"] = router.log
    worker = router.worker_pid
    environ_of_worker = Path(f"/proc/{worker}/cmdline").read_text()
    surfaces["command line"] = environ_of_worker

    secrets = (TOKEN, UPSTREAM_SECRET, made["key"], "wrong-key-1", PROMPT)
    for name, text in surfaces.items():
        for secret in secrets:
            assert secret not in text, f"{name} tells {secret}"
        for engine in engines:
            assert f":{engine.port}" not in text, f"{name} tells where an engine is"


def test_guessing_a_key_takes_as_long_however_much_of_it_is_right(router: Router) -> None:
    """Digests are compared, so nothing shows how much of a guess is right. Coarse: it is a network."""

    def seconds(token: str) -> float:
        times = []
        for _ in range(30):
            began = time.perf_counter()
            answer = request(router.port, "GET", "/v1/models", headers={"Authorization": f"Bearer {token}"})
            times.append(time.perf_counter() - began)
            assert answer.status == 401
        return sorted(times)[len(times) // 2]

    near, far = seconds(TOKEN[:-1] + "x"), seconds("x" * len(TOKEN))
    assert abs(near - far) < 0.02


def test_a_foreign_page_can_use_nothing_of_a_router_without_keys(
    make_router: Callable[..., Router], engines: list[Engine]
) -> None:
    """What browsers send for any page without asking first: a body that they call text."""
    installed = documents(direct_tier(engines[0]))
    router = make_router(
        installed, environ={"ANVIL_AUTH": "off", "ANVIL_ALLOWED_HOSTS": "127.0.0.1,a.lan"}
    ).start()
    quiesce = {"action": "quiesce", "tier_id": "direct", "confirm": True, "dry_run": False}
    foreign = (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://evil.example:{router.port}", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "cross-site"},
    )
    own = ({}, {"Origin": router.url, "Sec-Fetch-Site": "same-origin"}, {"Origin": "http://a.lan"})

    def post(path: str, body: object, headers: dict[str, str]) -> tuple[int, str]:
        answer = request(
            router.port, "POST", path, body=body, headers={"Content-Type": "text/plain", **headers}
        )
        return answer.status, answer.body.decode()

    for headers in foreign:
        for path, body in ((CHAT, chat_body("live.direct")), ("/v1/admin/transition", quiesce)):
            status, text = post(path, body, headers)
            assert (status, '"code":"cross_site"' in text) == (403, True), (path, headers, text)
        for path in ("/v1/models", "/v1/decisions", "/metrics"):
            assert request(router.port, "GET", path, headers=headers).status == 403
    assert engines[0].stats()["received"] == 0
    (tier,) = request(router.port, "GET", "/v1/admin/transition").json()["tiers"]
    assert tier["state"] == "admitting"

    for headers in own:
        assert post(CHAT, chat_body("live.direct"), headers)[0] == 200
    assert router.request("POST", "/v1/admin/transition", body=quiesce, headers=own[1]).status == 200
