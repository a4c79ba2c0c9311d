"""What the front door refuses before it reads, and what it answers where there is nothing.

Regressions: strangers could fill the body budget; an unknown path told of a missing CSRF token.
"""

import pytest

from tests.live.harness import Engine, Router, direct_tier, documents
from tests.live.raw import RawConnection

HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: anvil\r\nAuthorization: Bearer wrong\r\n"
    "Content-Length: 1000000\r\n"
)


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp("front-door")
    engine = Engine.start(directory)
    router = Router(directory, documents(direct_tier(engine))).start()
    yield router
    router.stop()
    engine.stop()


@pytest.mark.requirement("contract 2", "house 2")
@pytest.mark.parametrize("more", ["\r\nx", "Expect: 100-continue\r\n\r\n"])
def test_a_stranger_is_refused_before_its_body_is_read(router: Router, more: str) -> None:
    with RawConnection(router.port, timeout=5) as caller:
        caller.send((HEAD + more).encode())
        answer = caller.read_head()
    assert answer.status == 401


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
