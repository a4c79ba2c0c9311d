"""Activation over real sockets: a flowing scope never notices that of another (contract 1, activation)."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests import corpus
from tests.live.harness import (
    Answer,
    Documents,
    Engine,
    Ran,
    Router,
    admission_counts,
    anvil,
    chat_body,
    direct_tier,
    documents,
    eventually,
    replica_tier,
)
from tests.live.raw import RawConnection

pytestmark = pytest.mark.requirement("contract 1 activation")

Connect = Callable[..., RawConnection]
MakeEngine = Callable[..., Engine]
MakeRouter = Callable[..., Router]

SNAPSHOTS = "/v1/admin/snapshots"
LONGEST_SILENCE = 2.0
"""Seconds between two events of a stream whose engine sends one each 0.1 s, on a machine that is shared."""


# --- What the tests do ------------------------------------------------------------------------------------


def write(directory: Path, name: str, wanted: Documents) -> list[str]:
    """The options that name these documents, written to files."""
    words: list[str] = []
    for option, data in (("config", wanted.config), ("topology", wanted.topology)):
        path = directory / f"{name}-{option}.toml"
        path.write_bytes(data)
        words += [f"--{option}", str(path)]
    return words


def install_config(router: Router, words: list[str], *more: str) -> Ran:
    environ = {"ANVIL_URL": router.url, "ANVIL_TOKEN": router.token}
    return anvil("router", "install-config", *words, "--confirm", "--json", *more, environ=environ)


def capture(router: Router, wanted: Documents) -> int:
    """Send documents as a form does not have to: in JSON."""
    from base64 import b64encode

    body = {"config": b64encode(wanted.config).decode(), "topology": b64encode(wanted.topology).decode()}
    answer = router.request("POST", SNAPSHOTS, body=body)
    assert answer.status in (200, 201), answer.body
    number: int = answer.json()["id"]
    return number


def activate(router: Router, number: int, **order: object) -> Answer:
    path = f"{SNAPSHOTS}/{number}/activate"
    return router.request("POST", path, body={"confirm": True, "dry_run": False, **order}, timeout=60.0)


def chats(engine: Engine) -> int:
    """Chat completions that reached an engine."""
    count: int = engine.stats()["requests"].get("/v1/chat/completions", 0)
    return count


def steps(answer: Any) -> list[str]:
    return [" ".join(str(word) for word in step.values() if word is not None) for step in answer["steps"]]


@dataclass
class Stream:
    """One streamed answer that a thread of its own reads to its end."""

    connection: RawConnection
    times: list[float] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    ending: str = ""
    status: int = 0

    def read(self) -> None:
        response = self.connection.start_response()
        self.status = response.status
        for event in self.connection.events(response):
            self.times.append(event.at)
            if event.data is not None:
                self.data.append(event.data)
        self.ending = response.ending

    @property
    def words(self) -> int:
        """Pieces of content that came."""
        found = (json.loads(data)["choices"] for data in self.data if data != "[DONE]")
        return sum(1 for choices in found if choices and choices[0]["delta"].get("content"))

    @property
    def longest_silence(self) -> float:
        return max(later - earlier for earlier, later in pairwise(self.times))


class Streams:
    """Streams that run while a test changes the configuration under them."""

    def __init__(self, router: Router, alias: str, count: int, connect: Connect) -> None:
        self.all: list[Stream] = []
        self._threads: list[threading.Thread] = []
        for _ in range(count):
            connection = connect(router.port, timeout=60.0)
            connection.post(chat_body(alias, stream=True))
            stream = Stream(connection)
            thread = threading.Thread(target=stream.read, daemon=True)
            thread.start()
            self.all.append(stream)
            self._threads.append(thread)

    def await_first_words(self) -> None:
        eventually(lambda: all(stream.words >= 1 for stream in self.all), timeout=15.0)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60.0)
            assert not thread.is_alive()

    @property
    def running(self) -> int:
        return sum(thread.is_alive() for thread in self._threads)


class Callers:
    """Short requests, one after another, whose answers and times are kept."""

    def __init__(self, router: Router, alias: str) -> None:
        self._router, self._alias = router, alias
        self._stopping = threading.Event()
        self.answers: list[tuple[int, float]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            answer = self._router.chat(self._alias, max_tokens=1)
            self.answers.append((answer.status, time.monotonic() - began))
            self._stopping.wait(0.05)

    def __enter__(self) -> "Callers":
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._thread.join(30.0)
        assert not self._thread.is_alive()


# --- Under load -------------------------------------------------------------------------------------------


def test_sixty_four_streams_on_one_tier_do_not_notice_what_happens_to_the_others(
    make_engine: MakeEngine, make_router: MakeRouter, connect: Connect, tmp_path: Path
) -> None:
    """Another tier moves; a member joins, hangs, gets another ceiling and leaves; then all is rolled back."""
    tokens = 160
    members = [make_engine(f"member-{name}", token=0.1, tokens=tokens, slots=64) for name in "abc"]
    joining = members.pop()
    old_b, new_b = make_engine("old-b", token=0.1, tokens=20), make_engine("new-b")

    def wanted(b: Engine, *more: Engine, ceilings: int | list[int | None] = 48) -> Documents:
        chat = replica_tier([*members, *more], ceilings=ceilings)
        quick = direct_tier(members[0], tier_id="quick", alias="live.quick")
        return documents(chat, direct_tier(b, tier_id="b", alias="live.b"), quick)

    first = wanted(old_b)
    router = make_router(first).start()
    rollback = capture(router, first)
    streams = Streams(router, "live.chat", 64, connect)
    streams.await_first_words()
    with Callers(router, "live.quick") as callers:
        of_b = Streams(router, "live.b", 1, connect)
        of_b.await_first_words()

        # Another tier moves: refused while it runs a request, then with a drain.
        words = write(tmp_path, "moved", wanted(new_b))
        refused = install_config(router, words)
        assert refused.code == 1
        assert [error["code"] for error in refused.envelope["errors"]] == ["not_drained"]
        assert refused.envelope["data"]["activation"]["scopes"] == [
            {"tier_id": "b", "member_id": None, "state": "admitting", "active_requests": 1}
        ]
        moved = install_config(router, words, "--drain-timeout", "20")
        assert moved.code == 0, moved.out
        assert steps(moved.envelope["data"]["activation"]) == [
            "validate passed",
            "quiesce b quiesced",
            "drain b drained",
            "activate activated",
            "verify b identity_passed",
            "readmit b readmitted",
        ]
        of_b.join()
        assert (of_b.all[0].ending, of_b.all[0].data[-1], of_b.all[0].words) == ("chunked", "[DONE]", 20)
        assert router.chat("live.b").status == 200
        assert chats(new_b) == 1

        # A member joins whose health check hangs; it serves once it is well.
        joining.fault("slow_health", seconds=30.0)
        joined = activate(router, capture(router, wanted(new_b, joining)))
        assert joined.status == 200, joined.body
        with connect(router.port) as connection:
            began = time.monotonic()
            connection.post(chat_body("live.chat", stream=True))
            assert connection.read_head().status == 200
            # A probe of the one that hangs takes a second; no request of its peers may sit through it.
            assert time.monotonic() - began < 0.9
        joining.clear()
        eventually(lambda: _is_ready(router, "chat", "member-c"), timeout=10.0)

        # Peers get another ceiling, one of them less than it runs.
        assert activate(router, capture(router, wanted(new_b, joining, ceilings=[8, 48, 48]))).status == 200
        counts = admission_counts(router)
        assert counts["chat/member-a"] > 8
        with connect(router.port) as connection:
            connection.post(chat_body("live.chat", stream=True))
            assert dict(connection.read_head().headers)["x-anvil-member"] == "member-c"

        # It leaves again, and everything is as it was.
        restored = activate(router, rollback, drain_timeout=30)
        assert restored.status == 200, restored.body
        assert "drain chat member-c drained" in steps(restored.json())
        assert router.chat("live.b", stream=False).status == 200
        assert streams.running == 64

    streams.join()
    assert {stream.status for stream in streams.all} == {200}
    assert {stream.ending for stream in streams.all} == {"chunked"}
    assert {stream.data[-1] for stream in streams.all} == {"[DONE]"}
    assert {stream.words for stream in streams.all} == {tokens}
    assert max(stream.longest_silence for stream in streams.all) < LONGEST_SILENCE
    assert {status for status, _ in callers.answers} == {200}
    assert max(seconds for _, seconds in callers.answers) < LONGEST_SILENCE
    eventually(lambda: not any(admission_counts(router).values()), timeout=10.0)


def _is_ready(router: Router, tier_id: str, member_id: str) -> bool:
    answer = router.request("GET", f"/v1/admin/transition?tier_id={tier_id}&member_id={member_id}")
    (member,) = answer.json()["tiers"][0]["members"]
    ready: bool = member["ready"]
    return ready


def test_a_tier_that_can_not_be_verified_is_what_it_was(
    make_engine: MakeEngine, make_router: MakeRouter, tmp_path: Path
) -> None:
    right, wrong = make_engine("right"), make_engine("wrong")
    wrong.fault("wrong_model")
    router = make_router(documents(direct_tier(right))).start()
    refused = install_config(
        router, write(tmp_path, "wrong", documents(direct_tier(wrong))), "--drain-timeout", "5"
    )
    assert refused.code == 1
    assert [error["code"] for error in refused.envelope["errors"]] == ["verification_failed"]
    activation = refused.envelope["data"]["activation"]
    assert steps(activation)[-3:] == [
        "verify direct identity_mismatch",
        "restore restored",
        "reopen direct readmitted",
    ]
    assert router.chat("live.direct").status == 200
    assert chats(right) == 1
    router.kill()
    router.start()
    assert router.chat("live.direct").status == 200
    assert chats(right) == 2


def test_a_router_that_is_killed_while_it_drains_starts_with_what_was_active_and_open(
    make_engine: MakeEngine, make_router: MakeRouter, connect: Connect
) -> None:
    old, new = make_engine("old", token=0.1, tokens=600), make_engine("new")
    router = make_router(documents(direct_tier(old))).start()
    number = capture(router, documents(direct_tier(new)))
    streams = Streams(router, "live.direct", 1, connect)
    streams.await_first_words()
    outcome: list[str] = []

    def begin() -> None:
        try:
            activate(router, number, drain_timeout=600)
        except OSError as error:
            outcome.append(type(error).__name__)

    thread = threading.Thread(target=begin, daemon=True)
    thread.start()
    eventually(lambda: router.request("GET", "/v1/admin/transition").json()["tiers"][0]["draining"])
    router.kill()
    thread.join(10.0)
    assert outcome
    router.start()
    (tier,) = router.request("GET", "/v1/admin/transition").json()["tiers"]
    assert (tier["state"], tier["reason"]) == ("admitting", None)
    listed = router.request("GET", SNAPSHOTS).json()["data"]
    assert [row["active"] for row in listed] == [False, True]
    assert activate(router, number, drain_timeout=5).status == 200
    assert router.chat("live.direct").status == 200
    assert chats(new) == 1


# --- From the command line --------------------------------------------------------------------------------


@pytest.mark.requirement("Q-R004", "Q-T015")
def test_each_fixed_code_comes_without_any_input(
    make_engine: MakeEngine, make_router: MakeRouter, tmp_path: Path
) -> None:
    """The nine codes, each from a process of its own, with nothing of the documents or their names."""
    router = make_router(documents(direct_tier(make_engine()))).start()
    directory = tmp_path / "host-7.private.example"
    directory.mkdir()
    too_large = directory / "large.toml"
    too_large.write_bytes(b"# sk-private\n" * 100_000)
    cases: dict[str, list[str]] = {"config_too_large": ["--config", str(too_large)]}
    for case in corpus.snapshot_cases(valid=False):
        config, topology, _ = case.data()
        assert topology is not None
        cases[case.name] = write(directory, case.name, Documents(config=config, topology=topology))
    assert len(cases) == 9
    for code, words in cases.items():
        ran = install_config(router, words)
        assert ran.code == 2, code
        assert [error["code"] for error in ran.envelope["errors"]] == [code]
        assert ran.envelope["data"]["applied"] is False
        for secret in ("private", "8101", "llm-a", "gpu-host", "member-a", "sk-", str(tmp_path)):
            assert secret not in ran.out, (code, secret)
    assert len(router.request("GET", SNAPSHOTS).json()["data"]) == 1


@pytest.mark.requirement("Q-R004", "Q-T015")
def test_a_router_that_refuses_a_configuration_says_why_without_its_input(
    make_engine: MakeEngine, make_router: MakeRouter
) -> None:
    """Whoever goes round the command line is refused by the same rules, before anything is stored."""
    from base64 import b64encode

    router = make_router(documents(direct_tier(make_engine()))).start()
    for case in corpus.snapshot_cases(valid=False):
        config, topology, _ = case.data()
        assert topology is not None
        body = {"config": b64encode(config).decode(), "topology": b64encode(topology).decode()}
        answer = router.request("POST", SNAPSHOTS, body=body)
        assert (answer.status, answer.json()["error"]["code"]) == (422, case.name)
        assert "llm-a" not in json.dumps(answer.json()["error"])
    assert "llm-a" not in router.log


@pytest.mark.requirement("Q-T015", "contract 5")
def test_a_configuration_is_installed_into_an_empty_data_directory_and_served_from_it(
    make_engine: MakeEngine, make_router: MakeRouter, tmp_path: Path
) -> None:
    engine = make_engine()
    wanted = documents(direct_tier(engine))
    router = make_router()
    words = write(tmp_path, "first", wanted)
    environ = {"ANVIL_URL": router.url, "ANVIL_TOKEN": "none", "ANVIL_DATA": str(router.directory / "data")}
    ran = anvil("router", "install-config", *words, "--confirm", "--json", environ=environ)
    assert ran.code == 0, ran.out + ran.err
    assert ran.envelope["context"] is None
    assert ran.envelope["data"]["activation"] == {"activated": True, "snapshot_id": 1}
    again = anvil("router", "install-config", *words, "--confirm", "--json", environ=environ)
    assert again.envelope["data"]["activation"] == {"activated": True, "snapshot_id": 1}
    router.start()
    assert router.chat("live.direct").status == 200
    shown = router.request("GET", f"{SNAPSHOTS}/1").json()
    assert shown["active"] is True
    assert (shown["source"], shown["created_by"]) == ("cli", "offline")

    # While it runs, the directory is its own: an address that nobody listens at does not go round it.
    idle = make_router()
    ran = anvil(
        "router", "install-config", *words, "--confirm", "--json", environ={**environ, "ANVIL_URL": idle.url}
    )
    assert ran.code == 1
    assert [error["code"] for error in ran.envelope["errors"]] == ["ledger_owned"]


def test_a_router_without_a_configuration_takes_its_first_one_while_it_runs(
    make_engine: MakeEngine, make_router: MakeRouter, tmp_path: Path
) -> None:
    engine = make_engine()
    bootstrap = documents(direct_tier(engine))
    router = make_router(environ={"ANVIL_AUTH": "off"}).start(wait=False)
    eventually(lambda: _status(router, "/healthz") == 200, timeout=30.0)
    assert router.request("GET", "/readyz").json() == {"status": "not_ready", "reason": "not_configured"}
    ran = install_config(router, write(tmp_path, "first", bootstrap))
    assert ran.code == 0, ran.out
    router.await_ready()
    assert router.chat("live.direct").status == 200


def _status(router: Router, path: str) -> int:
    try:
        return router.request("GET", path, timeout=2.0).status
    except OSError:
        return 0
