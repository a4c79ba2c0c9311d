"""The verbs that read, and keys and intent, against a scripted router on loopback."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anvil_site.cli import shapes, watch
from tests.unit.anvil_site.cli_support import TOKEN, Anvil, FakeRouter

RECORD = {
    "route": "llm.primary",
    "kind": "chat",
    "requested_tier": "primary",
    "served_tier": "primary",
    "attempts": [{"tier_id": "primary", "outcome": "served", "succeeded": True, "reason": "served"}],
    "total_prompt_tokens": 12,
    "total_completion_tokens": 34,
    "latency_ms": 56.5,
    "request_id": "req-1",
    "replica_member_id": "member-a",
    "replica_selection": "identity_passed",
}
REFUSED = {**RECORD, "request_id": "req-2", "attempts": [], "replica_member_id": None}
READERS = {
    ("router", "status"): "/v1/router/status",
    ("router", "capacity"): "/v1/models/capacity",
    ("router", "decisions"): "/v1/decisions",
    ("router", "explain", "--model", "llm.primary"): "/v1/admin/explain",
    ("router", "watch"): "/v1/models/capacity",
    ("decisions", "export"): "/v1/decisions",
    ("keys", "list"): "/v1/admin/keys",
    ("admission", "export"): "/v1/admin/intent",
}


@pytest.mark.requirement("contract 5")
@pytest.mark.parametrize(("words", "path"), READERS.items(), ids=lambda value: str(value))
class TestEveryReader:
    def test_the_answer_is_the_envelopes_data(
        self, anvil: Anvil, router: FakeRouter, words: tuple[str, ...], path: str
    ) -> None:
        body = {"object": "some", "data": [], "records": [], "keys": []}
        router.answer("GET", path, 200, body)
        result = anvil(*words, "--json")
        assert result.code == 0
        assert result.envelope == {
            "command": " ".join(words[:2]),
            "ok": True,
            "context": {"via": "router"},
            "data": body,
            "warnings": [],
            "errors": [],
        }
        (asked,) = router.asked
        assert (asked.method, asked.path, asked.body) == ("GET", path, b"")

    def test_a_refusal_has_a_fixed_code(
        self, anvil: Anvil, router: FakeRouter, words: tuple[str, ...], path: str
    ) -> None:
        for _ in range(2):
            router.answer("GET", path, 403, {"error": {"code": "x", "message": "http://10.0.0.7"}})
        scope = "configure" if words[0] in ("keys", "admission") else "observe"
        message = (
            "the key in ANVIL_TOKEN lacks the scope; "
            f"this needs {scope}; who may configure can make one: anvil keys create"
        )
        enveloped = anvil(*words, "--json")
        assert enveloped.code == 1
        assert enveloped.envelope["data"] is None
        assert enveloped.envelope["errors"] == [{"code": "forbidden", "message": message}]
        shown = anvil(*words)
        assert (shown.code, shown.out) == (1, "")
        assert shown.err == f"{' '.join(words[:2])}: {message} (forbidden)\n"

    def test_an_answer_beyond_any_bound_is_malformed(
        self, anvil: Anvil, router: FakeRouter, words: tuple[str, ...], path: str
    ) -> None:
        router.answer("GET", path, 200, {"data": [], "records": [], "keys": [], "x": "y" * 4097})
        result = anvil(*words, "--json")
        assert result.code == 1
        assert result.envelope["errors"][0]["code"] == "malformed_answer"

    def test_without_a_router(self, anvil: Anvil, words: tuple[str, ...], path: str) -> None:
        result = anvil(*words, "--json")
        assert result.code == 1
        assert result.envelope["errors"][0]["code"] == "router_unreachable"


@pytest.mark.requirement("contract 5")
class TestWhatPeopleRead:
    def test_status(self, anvil: Anvil, router: FakeRouter) -> None:
        body = {
            "object": "router_status",
            "package_version": "0.1.0",
            "uptime_seconds": 90,
            "tier_counts": {"configured": 2, "enabled": 2},
            "snapshot_sha256": "ab" * 32,
            "owns_ledger": True,
            "draining": True,
        }
        router.answer("GET", "/v1/router/status", 200, body)
        assert anvil("router", "status").out == (
            "anvil 0.1.0, up 90 s, 2 of 2 tiers enabled\n"
            f"owns the ledger, draining; active snapshot {'ab' * 32}\n"
        )

    def test_capacity(self, anvil: Anvil, router: FakeRouter) -> None:
        rows = [
            {
                "id": "primary",
                "readiness": {"state": "ready", "reason": "identity_passed"},
                "capacity": {"context_limit_tokens": 32768, "configured_max_concurrency": 24},
                "admission": {"state": "admitting", "active_requests": 3, "max_concurrency": 16},
            },
            {
                "id": "direct",
                "readiness": {"state": "unavailable", "reason": "health_http_503"},
                "capacity": {"context_limit_tokens": 8192, "configured_max_concurrency": 4},
            },
        ]
        router.answer("GET", "/v1/models/capacity", 200, {"object": "list", "data": rows})
        assert anvil("router", "capacity", "--model", "LLM.Primary").out == (
            "primary: ready (identity_passed), admitting, 3 active, ceiling 16, context 32768\n"
            "direct: unavailable (health_http_503), ceiling 4, context 8192\n"
        )
        assert router.asked[0].query == {"model": "llm.primary"}

    def test_decisions(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("GET", "/v1/decisions", 200, {"records": [RECORD, REFUSED]})
        assert anvil("router", "decisions", "--limit", "2").out == (
            "req-1 llm.primary -> primary/member-a: served (served), 12 + 34 tokens, 56.5 ms\n"
            "req-2 llm.primary -> primary: not admitted, 12 + 34 tokens, 56.5 ms\n"
        )
        assert router.asked[0].query == {"limit": "2"}

    def test_no_decisions(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("GET", "/v1/decisions", 200, {"records": []})
        assert anvil("router", "decisions").out == "nothing to show\n"
        assert router.asked[0].query == {}

    def test_explain(self, anvil: Anvil, router: FakeRouter) -> None:
        body = {
            "object": "router_explanation",
            "model": "llm.primary",
            "summary": "It is not served.",
            "steps": [
                {"step": "tier", "scope": "primary", "result": "refuses", "detail": "is quiesced"},
                {"step": "member", "scope": "primary/a", "result": "passes", "detail": "ready"},
            ],
        }
        router.answer("GET", "/v1/admin/explain", 200, body)
        assert anvil("router", "explain", "--model", "llm.primary").out == (
            "It is not served.\n  refuses  primary    tier: is quiesced\n"
            "  passes   primary/a  member: ready\n"
            "model: llm.primary\n"
        )

    def test_shapes_that_nobody_promised_break_nothing(self, anvil: Anvil, router: FakeRouter) -> None:
        odd: dict[str, Any] = {"data": [1, None, {"readiness": 3, "admission": [], "capacity": "x"}]}
        router.answer("GET", "/v1/models/capacity", 200, odd)
        router.answer("GET", "/v1/decisions", 200, {"records": [{"attempts": "x"}, 7]})
        router.answer("GET", "/v1/router/status", 200, {"tier_counts": []})
        for words in (("router", "capacity"), ("router", "decisions"), ("router", "status")):
            assert anvil(*words).code == 0


@pytest.mark.requirement("contract 5")
class TestDecisionsExport:
    def test_one_object_a_line(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("GET", "/v1/decisions", 200, {"available": 2, "records": [RECORD, REFUSED]})
        result = anvil("decisions", "export", "--jsonl")
        assert (result.code, result.err) == (0, "")
        assert [json.loads(line) for line in result.out.splitlines()] == [RECORD, REFUSED]
        assert router.asked[0].query == {"limit": "500"}

    def test_what_is_left_out_is_said(self, anvil: Anvil, router: FakeRouter) -> None:
        for _ in range(2):
            router.answer("GET", "/v1/decisions", 200, {"available": 9000, "records": [RECORD]})
        result = anvil("decisions", "export", "--limit", "1")
        assert len(result.out.splitlines()) == 1
        warning = "1 of 9000 decisions; decision_log_path in [server] keeps all of them"
        assert result.err == f"warning: {warning}\n"
        assert anvil("decisions", "export", "--json").envelope["warnings"] == [warning]

    def test_two_formats_exclude_each_other(self, anvil: Anvil, router: FakeRouter) -> None:
        result = anvil("decisions", "export", "--jsonl", "--json")
        assert result.code == 2
        assert result.envelope["errors"][0]["code"] == "usage_options_conflict"
        assert router.asked == []


@pytest.mark.requirement("contract 5", "contract 2")
class TestKeys:
    SECRET = "anvil_0123456789abcdef0123456789abcdef"

    def test_create_shows_the_key_once(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("POST", "/v1/admin/keys", 201, {"id": 3, "name": "chat", "key": self.SECRET})
        result = anvil(
            *("keys", "create", "--name", "chat", "--scopes", "observe,infer", "--max-concurrency", "4"),
            *("--expires", "2030-01-01T00:00:00+02:00", "--confirm"),
        )
        assert (result.code, result.err) == (0, "")
        assert result.out == f"{self.SECRET}\nThis is the only time that the key is shown.\n"
        assert router.asked[0].json == {
            "name": "chat",
            "scopes": ["infer", "observe"],
            "max_concurrency": 4,
            "expires_at": "2029-12-31T22:00:00+00:00",
        }

    def test_create_without_confirm_asks_nobody(self, anvil: Anvil, router: FakeRouter) -> None:
        result = anvil("keys", "create", "--name", "private-name", "--scopes", "infer", "--json")
        assert result.code == 0
        assert result.envelope["data"] == {
            "applied": False,
            "dry_run": True,
            "action": "create",
            "scopes": ["infer"],
        }
        assert "private-name" not in result.text
        assert router.asked == []

    def test_create_without_a_key_in_the_answer_is_no_success(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("POST", "/v1/admin/keys", 201, {"id": 3})
        assert anvil("keys", "create", "--name", "a", "--scopes", "infer", "--confirm").code == 1

    def test_list(self, anvil: Anvil, router: FakeRouter) -> None:
        keys = [
            {"id": 1, "name": "chat", "prefix": "anvil_01", "scopes": ["infer"], "expires_at": None},
            {"id": 2, "name": "old", "prefix": "anvil_02", "scopes": ["observe", "operate"], "revoked": True},
        ]
        router.answer("GET", "/v1/admin/keys", 200, {"keys": keys})
        assert anvil("keys", "list").out == (
            "1 anvil_01 chat: infer; expires never\n2 anvil_02 old: observe,operate; revoked\n"
        )

    def test_revoke(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("DELETE", "/v1/admin/keys/7", 204, b"")
        result = anvil("keys", "revoke", "--id", "7", "--confirm", "--json")
        assert result.code == 0
        assert result.envelope["data"] == {"applied": True, "action": "revoke", "id": 7, "key": None}
        assert [(asked.method, asked.path) for asked in router.asked] == [("DELETE", "/v1/admin/keys/7")]

    def test_revoke_of_an_unknown_key(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("DELETE", "/v1/admin/keys/7", 404, {"error": {"code": "unknown_key"}})
        result = anvil("keys", "revoke", "--id", "7", "--confirm")
        text = "keys revoke: there is no such key; anvil keys list shows them (unknown_key)\n"
        assert (result.code, result.err) == (1, text)

    def test_revoke_without_confirm_asks_nobody(self, anvil: Anvil, router: FakeRouter) -> None:
        result = anvil("keys", "revoke", "--id", "7")
        assert result.out == "preview: revoke key 7; nothing was changed, --confirm does it\n"
        assert router.asked == []


@pytest.mark.requirement("contract 5", "C-T010")
class TestIntent:
    DOCUMENT = (
        b'{ "version": 1,\r\n "tiers": {"primary": {"state": "quiesced", "reason": "maintenance"}},'
        b' "members": {"pair": {"member-a": "kernel-upgrade"}} }\n'
    )

    def test_export_prints_the_document(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("GET", "/v1/admin/intent", 200, self.DOCUMENT)
        result = anvil("admission", "export")
        assert (result.code, result.err) == (0, "")
        assert json.loads(result.out) == json.loads(self.DOCUMENT)

    def test_import_sends_the_exact_bytes(self, anvil: Anvil, router: FakeRouter, tmp_path: Path) -> None:
        path = tmp_path / "intent.json"
        path.write_bytes(self.DOCUMENT)
        router.answer("PUT", "/v1/admin/intent", 200, {})
        result = anvil("admission", "import", "--file", str(path), "--confirm", "--json")
        assert result.code == 0
        assert result.envelope["data"] == {"applied": True, "action": "import", "result": None}
        assert router.asked[0].body == self.DOCUMENT

    def test_import_without_confirm_asks_nobody(
        self, anvil: Anvil, router: FakeRouter, tmp_path: Path
    ) -> None:
        path = tmp_path / "intent.json"
        path.write_bytes(self.DOCUMENT)
        result = anvil("admission", "import", "--file", str(path))
        assert (result.code, result.out) == (
            0,
            "preview: import of the intent document; nothing was changed, --confirm does it\n",
        )
        assert router.asked == []

    def test_a_document_that_cannot_be_read_or_is_too_large(
        self, anvil: Anvil, router: FakeRouter, tmp_path: Path
    ) -> None:
        large = tmp_path / "large.json"
        large.write_bytes(b" " * 1_048_577)
        for path, code in (
            (tmp_path / "missing.json", "document_unreadable"),
            (tmp_path, "document_unreadable"),
            (large, "document_too_large"),
        ):
            result = anvil("admission", "import", "--file", str(path), "--confirm", "--json")
            assert result.code == 2
            assert result.envelope["errors"][0]["code"] == code
            assert str(path) not in result.text
        assert router.asked == []

    @pytest.mark.parametrize("confirm", [(), ("--confirm",)])
    @pytest.mark.parametrize(
        "document",
        [
            b"",
            b"[]",
            b'{"version": 1}',
            b'{"version": 1, "tiers": {}, "tiers": {}}',
            b'{"version": 1, "tiers": {}, "members": null}',
            b'{"version": 1, "tiers": {}, "members": {"pair": {"member-a": {"state": "secret"}}}}',
        ],
    )
    def test_a_document_of_another_form_is_refused_before_anybody_is_asked(
        self, anvil: Anvil, router: FakeRouter, tmp_path: Path, document: bytes, confirm: tuple[str, ...]
    ) -> None:
        """A preview once promised to import it."""
        path = tmp_path / "intent.json"
        path.write_bytes(document)
        result = anvil("admission", "import", "--file", str(path), *confirm, "--json")
        assert result.code == 2
        assert result.envelope["data"] is None
        assert [fault["code"] for fault in result.envelope["errors"]] == ["document_malformed"]
        assert "secret" not in result.text
        assert router.asked == []


@pytest.mark.requirement("contract 5", "console: terminal")
class TestWatch:
    ROWS: dict[str, Any] = {
        "data": [
            {
                "id": "primary",
                "readiness": {"state": "ready", "reason": "identity_passed"},
                "capacity": {"configured_max_concurrency": 24},
                "admission": {
                    "state": "admitting",
                    "active_requests": 3,
                    "draining": False,
                    "max_concurrency": 16,
                    "member_active_requests": {"member-a": 1, "member-b": 2},
                    "members": [
                        {"id": "member-a", "state": "admitting", "active_requests": 1, "max_concurrency": 8},
                        {"id": "member-b", "state": "quiesced", "draining": True, "active_requests": 2},
                    ],
                },
                "metadata": {
                    "members": [
                        {
                            "id": "member-a",
                            "state": "ready",
                            "reason": "identity_passed",
                            "telemetry": {"freshness": "fresh", "pressure_ppm": 125_000},
                        },
                        {
                            "id": "member-b",
                            "state": "unavailable",
                            "reason": "health_http_503",
                            "telemetry": {"freshness": "stale", "pressure_ppm": None},
                        },
                    ]
                },
            },
            {
                "id": "[red]direct\x1b[2J",
                "readiness": {"state": "ready", "reason": "health_passed"},
                "capacity": {"configured_max_concurrency": None},
                "live": {"requests_running": 5},
            },
        ]
    }

    def test_one_row_a_tier_and_a_member(self) -> None:
        assert list(watch.scope_rows(self.ROWS)) == [
            ("primary", "admitting", "ready (identity_passed)", "3 / 16", "-"),
            ("  member-a", "admitting", "ready (identity_passed)", "1 / 8", "12.5 % fresh"),
            ("  member-b", "quiesced, draining", "unavailable (health_http_503)", "2", "stale"),
            ("(red]direct?(2J", "-", "ready (health_passed)", "5", "-"),
        ]

    def test_shapes_that_nobody_promised_break_nothing(self) -> None:
        assert list(watch.scope_rows({"data": [{"admission": 1, "metadata": "x"}, 3]})) == [
            ("None", "-", "- (-)", "-", "-")
        ]

    def test_it_ends_with_an_interrupt_and_survives_a_router_that_goes_away(
        self, anvil: Anvil, router: FakeRouter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks = iter([None, None, KeyboardInterrupt()])

        def sleep(seconds: float) -> None:
            ends = next(looks)
            if ends is not None:
                raise ends

        clock = SimpleNamespace(sleep=sleep, monotonic=lambda: 0.0, strftime=lambda form: "03:04:05")
        monkeypatch.setattr(watch, "time", clock)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        for status in (200, 500, 200):
            router.answer("GET", "/v1/models/capacity", status, self.ROWS)
        result = anvil("router", "watch")
        assert result.code == 0
        assert len(router.asked) == 3
        assert TOKEN not in result.text

    def test_into_a_pipe_it_prints_a_line_for_each_change(
        self, anvil: Anvil, router: FakeRouter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing at all came out of it before."""
        looks = iter([None] * 5 + [KeyboardInterrupt()])

        def sleep(seconds: float) -> None:
            ends = next(looks)
            if ends is not None:
                raise ends

        clock = SimpleNamespace(sleep=sleep, strftime=lambda form: "03:04:05")
        monkeypatch.setattr(watch, "time", clock)
        primary, odd = self.ROWS["data"]
        direct = {**odd, "id": "direct"}
        busy = {**direct, "live": {"requests_running": 6}}
        for status, rows in (
            (200, [primary, direct]),
            (200, [primary, direct]),
            (503, []),
            (503, []),
            (200, [primary, busy]),
            (200, [busy]),
        ):
            router.answer("GET", "/v1/models/capacity", status, {"data": rows})
        result = anvil("router", "watch")
        assert (result.code, result.err) == (0, "")
        lines = result.out.splitlines()
        assert {line[:9] for line in lines[:-1]} == {"03:04:05 "}
        assert [line[9:] for line in lines[:7]] == [
            "primary admitting, ready (identity_passed), 3 / 16 active",
            "primary/member-a admitting, ready (identity_passed), 1 / 8 active, pressure 12.5 % fresh",
            "primary/member-b quiesced, draining, unavailable (health_http_503), 2 active, pressure stale",
            "direct -, ready (health_passed), 5 active",
            "the router does not own the ledger, is draining or is busy; try again in a moment "
            "(router_unavailable)",
            "the router answers again",
            "direct -, ready (health_passed), 6 active",
        ]
        assert sorted(line[9:] for line in lines[7:-1]) == [
            "primary is gone",
            "primary/member-a is gone",
            "primary/member-b is gone",
        ]
        assert lines[-1] == "stopped"

    def test_it_ends_quietly_when_nobody_reads_any_more(self, router: FakeRouter) -> None:
        """Nothing changes meanwhile: no write would ever find out."""
        row = {"id": "direct", "live": {"requests_running": 0}}
        router.answer("GET", "/v1/models/capacity", 200, {"data": [row]})
        code = (
            "import sys; from anvil_site.cli import main, watch; watch.INTERVAL = 3600; "
            "sys.exit(main(['router', 'watch']))"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "ANVIL_URL": router.url},
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            # Flushed line by line: the first is here while it still runs.
            assert b"direct -, - (-), 0 active" in process.stdout.readline()
            process.stdout.close()
            assert process.wait(30) == 1
            assert process.stderr.read() == b""


@pytest.mark.requirement("C-T009")
class TestBounds:
    def test_depth_size_and_length(self) -> None:
        deep: Any = "x"
        for _ in range(shapes.MAX_DEPTH):
            deep = [deep]
        assert shapes.bounded(deep) == deep
        assert shapes.bounded([deep]) is None
        assert shapes.bounded("x" * shapes.MAX_TEXT) is not None
        assert shapes.bounded("x" * (shapes.MAX_TEXT + 1)) is None
        assert shapes.bounded({"x" * (shapes.MAX_TEXT + 1): 1}) is None
        assert shapes.bounded({1: 1}) is None
        assert shapes.bounded([float("inf")]) is None
        assert shapes.bounded([object()]) is None

    def test_the_number_of_values(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shapes, "MAX_VALUES", 4)
        assert shapes.bounded([1, 2, 3]) == [1, 2, 3]
        assert shapes.bounded([1, 2, 3, 4]) is None
