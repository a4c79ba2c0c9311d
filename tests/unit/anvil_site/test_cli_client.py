"""The one request function: where it goes, what it sends and takes, and what it makes of what goes wrong."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from anvil_site.cli import client
from anvil_site.cli.client import Answer, RouterFault, Target, call
from tests.unit.anvil_site.cli_support import TOKEN, Anvil, FakeRouter

PATH = "/v1/router/status"


def fault(call_it: Callable[[], object]) -> RouterFault:
    with pytest.raises(RouterFault) as caught:
        call_it()
    assert caught.value.__cause__ is None
    assert str(caught.value) == caught.value.code
    return caught.value


@contextmanager
def peer(monkeypatch: pytest.MonkeyPatch, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """A peer at ANVIL_URL that reads one request's head and then does as it likes with the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        monkeypatch.setenv("ANVIL_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(10)
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(4096)
                serve(connection)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield
        thread.join(10)
        assert not thread.is_alive()


class TestWhatIsSent:
    def test_a_get_with_its_query_and_the_token(self, router: FakeRouter) -> None:
        router.answer("GET", PATH, 200, {"object": "router_status"})
        assert call("GET", PATH, query={"limit": 3}) == Answer(200, {"object": "router_status"})
        (asked,) = router.asked
        assert (asked.method, asked.path, asked.query, asked.body) == ("GET", PATH, {"limit": "3"}, b"")
        assert asked.headers["authorization"] == f"Bearer {TOKEN}"
        assert asked.headers["accept-encoding"] == "identity"
        assert "cookie" not in asked.headers

    def test_an_object_is_sent_as_json_and_bytes_as_they_are(self, router: FakeRouter) -> None:
        router.answer("POST", PATH, 202, {})
        router.answer("PUT", PATH, 204, b"")
        assert call("POST", PATH, body={"a": [1]}) == Answer(202, {})
        assert call("PUT", PATH, body=b'{"a": 1, "a": 2}') == Answer(204, {})
        assert [(asked.body, asked.headers["content-type"]) for asked in router.asked] == [
            (b'{"a": [1]}', "application/json"),
            (b'{"a": 1, "a": 2}', "application/json"),
        ]

    def test_no_token_no_header(self, router: FakeRouter, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("ANVIL_TOKEN")
        router.answer("GET", PATH, 200, {})
        call("GET", PATH)
        assert "authorization" not in router.asked[0].headers

    def test_the_environments_proxy_and_netrc_are_not_used(
        self, router: FakeRouter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        netrc = tmp_path / "netrc"
        netrc.write_text("default login somebody password else\n")
        monkeypatch.setenv("NETRC", str(netrc))
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("ANVIL_TOKEN")
        router.answer("GET", PATH, 200, {})
        call("GET", PATH)
        assert "authorization" not in router.asked[0].headers

    def test_a_base_path_is_kept(self, router: FakeRouter, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ANVIL_URL", f"{router.url}/anvil/")
        router.answer("GET", f"/anvil{PATH}", 200, {})
        assert call("GET", PATH).status == 200


class TestWhatComesBack:
    @pytest.mark.parametrize(
        ("status", "code"),
        [
            (400, "refused"),
            (401, "unauthorised"),
            (403, "forbidden"),
            (404, "not_found"),
            (405, "refused"),
            (409, "conflict"),
            (413, "refused"),
            (429, "router_unavailable"),
            (500, "router_failed"),
            (502, "router_failed"),
            (503, "router_unavailable"),
            (302, "malformed_answer"),
            (304, "malformed_answer"),
            (600, "malformed_answer"),
        ],
    )
    def test_each_status_has_its_code(self, router: FakeRouter, status: int, code: str) -> None:
        router.answer("GET", PATH, status, b"" if status == 304 else b"<html>no json</html>")
        assert fault(lambda: call("GET", PATH)).code == code
        assert len(router.asked) == 1

    def test_a_redirect_is_not_followed(self, router: FakeRouter) -> None:
        router.answer("GET", PATH, 307, {}, {"Location": f"{router.url}/elsewhere"})
        assert fault(lambda: call("GET", PATH)).code == "malformed_answer"
        assert [asked.path for asked in router.asked] == [PATH]

    @pytest.mark.parametrize("code", sorted(client.NAMED_REFUSALS))
    def test_a_refusal_that_the_router_names_keeps_its_name(self, router: FakeRouter, code: str) -> None:
        body = {"error": {"message": "m", "type": "t", "param": None, "code": code}, "scopes": []}
        router.answer("POST", PATH, 409, body)
        caught = fault(lambda: call("POST", PATH, body={}))
        assert (caught.code, caught.body) == (code, body)

    @pytest.mark.parametrize(
        "body",
        [
            {"error": {"code": "some_new_word"}},
            {"error": {"code": ["not_drained"]}},
            {"error": "not_drained"},
            {"code": "not_drained"},
            ["not_drained"],
            None,
        ],
    )
    def test_any_other_word_is_not_passed_on(self, router: FakeRouter, body: object) -> None:
        router.answer("GET", PATH, 409, body)
        assert fault(lambda: call("GET", PATH)).code == "conflict"

    @pytest.mark.parametrize(
        "data",
        [
            b"[]",
            b"null",
            b'"text"',
            b"{",
            b"<html>",
            b'{"a": NaN}',
            b'{"a": Infinity}',
            b"\xff\xfe\xfd",
            b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        ],
        ids=range(9),
    )
    def test_a_good_status_with_no_object_is_malformed(self, router: FakeRouter, data: bytes) -> None:
        router.answer("GET", PATH, 200, data)
        assert fault(lambda: call("GET", PATH)).code == "malformed_answer"

    def test_a_body_at_the_limit_is_taken_and_one_byte_more_is_not(
        self, router: FakeRouter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 1000)
        exact = json.dumps({"a": "x" * 991}).encode()
        assert len(exact) == 1000
        router.answer("GET", PATH, 200, exact)
        router.answer("GET", PATH, 200, exact + b" ")
        assert call("GET", PATH).status == 200
        assert fault(lambda: call("GET", PATH)).code == "malformed_answer"

    def test_a_body_that_trickles_meets_the_deadline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        done, waited_in_vain = threading.Event(), []

        def serve(connection: socket.socket) -> None:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            waited_in_vain.append(not done.wait(5))

        readings = iter([100.0, 131.0])
        clock = SimpleNamespace(monotonic=lambda: next(readings))
        with peer(monkeypatch, serve):
            monkeypatch.setattr(client, "time", clock)
            assert fault(lambda: call("GET", PATH, timeout=30.0)).code == "answer_lost"
            done.set()
        assert waited_in_vain == [False]


class TestWhatGoesWrongOnTheWay:
    def test_nobody_listens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        monkeypatch.setenv("ANVIL_URL", f"http://127.0.0.1:{port}")
        caught = fault(lambda: call("GET", PATH))
        assert (caught.code, caught.reached) == ("router_unreachable", False)

    def test_a_name_that_does_not_resolve(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(*arguments: object, **options: object) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        monkeypatch.setenv("ANVIL_URL", "http://router.invalid")
        assert fault(lambda: call("GET", PATH)).code == "router_unreachable"

    def test_closed_without_an_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with peer(monkeypatch, lambda connection: None):
            caught = fault(lambda: call("POST", PATH, body={}))
        assert (caught.code, caught.reached) == ("answer_lost", False)

    def test_silence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        done = threading.Event()
        with peer(monkeypatch, lambda connection: done.wait(10) and None):
            assert fault(lambda: call("GET", PATH, timeout=0.05)).code == "answer_lost"
            done.set()

    def test_cut_in_the_body(self, monkeypatch: pytest.MonkeyPatch) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
        with peer(monkeypatch, lambda connection: connection.sendall(head + b"{")):
            assert fault(lambda: call("GET", PATH)).code == "answer_lost"

    def test_silence_in_the_body(self, monkeypatch: pytest.MonkeyPatch) -> None:
        done = threading.Event()

        def serve(connection: socket.socket) -> None:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            done.wait(10)

        with peer(monkeypatch, serve):
            assert fault(lambda: call("GET", PATH, timeout=0.05)).code == "answer_lost"
            done.set()

    def test_not_http(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with peer(monkeypatch, lambda connection: connection.sendall(b"220 smtp.example ESMTP\r\n\r\n")):
            assert fault(lambda: call("GET", PATH)).code == "answer_lost"


class TestTheEnvironment:
    @pytest.mark.parametrize(
        "url",
        [
            "127.0.0.1:8000",
            "ftp://127.0.0.1",
            "http://",
            "http:///path",
            "http://user:sk-secret@127.0.0.1:8000",
            "http://127.0.0.1:8000/?key=sk-secret",
            "http://127.0.0.1:8000/#sk-secret",
            "http://127.0.0.1:port",
            "http://127.0.0.1:99999",
            "http://[::1",
            "http://127.0.0.1 :8000",
            "http://host\n.example",
            "http://exämple",
        ],
    )
    def test_a_url_that_is_no_base_url_is_bad_input(
        self, anvil: Anvil, monkeypatch: pytest.MonkeyPatch, url: str
    ) -> None:
        monkeypatch.setenv("ANVIL_URL", url)
        result = anvil("router", "status", "--json")
        assert result.code == 2
        assert result.envelope == {
            "command": "router status",
            "ok": False,
            "context": None,
            "data": None,
            "warnings": [],
            "errors": [
                {
                    "code": "environment_invalid",
                    "message": "ANVIL_URL is not an http(s) base URL, or ANVIL_TOKEN is not a token",
                }
            ],
        }

    @pytest.mark.parametrize("token", ["a b", "sk-secret\r\nX-Other: 1", "schlüssel"])
    def test_a_token_that_is_no_header_value_is_bad_input(
        self, anvil: Anvil, router: FakeRouter, monkeypatch: pytest.MonkeyPatch, token: str
    ) -> None:
        monkeypatch.setenv("ANVIL_TOKEN", token)
        result = anvil("router", "status")
        assert (result.code, result.out) == (2, "")
        assert "sk-secret" not in result.err
        assert router.asked == []

    def test_the_router_is_on_this_machine_by_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("ANVIL_URL", raising=False)
        monkeypatch.setenv("ANVIL_TOKEN", TOKEN)
        target = Target.from_environment()
        assert target.base_url == "http://127.0.0.1:8000"
        assert TOKEN not in repr(target)
        assert "127.0.0.1" not in repr(target)

    @pytest.mark.parametrize(
        ("url", "local"),
        [
            ("http://127.0.0.1:8000", True),
            ("http://127.8.8.8", True),
            ("http://localhost", True),
            ("http://[::1]:8000", True),
            ("http://10.0.0.1", False),
            ("https://router.example", False),
            ("http://localhost.example", False),
        ],
    )
    def test_which_urls_are_this_machine(self, url: str, local: bool) -> None:
        assert Target(url, None).is_local is local


@pytest.mark.requirement("contract 5")
def test_what_the_token_and_the_address_are_is_never_printed(anvil: Anvil, router: FakeRouter) -> None:
    for status in (200, 401, 500):
        router.answer("GET", PATH, status, {"echo": "x"} if status == 200 else b"sk-body-text")
        for flags in ((), ("--json",)):
            result = anvil("router", "status", *flags)
            assert TOKEN not in result.text
            assert router.url not in result.text
            assert router.url.rpartition(":")[2] not in result.text
            assert "sk-body-text" not in result.text
