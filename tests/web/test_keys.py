"""``/v1/admin/keys`` and what its keys open: scopes, limits, expiry, revocation, and where no key shows."""

import datetime
import hashlib
import io
import logging
from typing import Any

import pytest
from django.utils import timezone

from routing import keys
from routing.access import Scope
from routing.audit import Through
from routing.models import ApiKey, AuditEntry
from tests.web.control_support import (
    ENVIRON,
    INTENT,
    KEYS,
    TOKEN,
    TRANSITION,
    Control,
    Reply,
    failing_database,
)

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.requirement("contract 2 authentication", "contract 2 wire"),
]

CHAT = "/v1/chat/completions"
CHAT_BODY = {"model": "no-such-alias", "messages": [{"role": "user", "content": "hi"}]}


def create(control: Control, name: str = "chat", scopes: tuple[str, ...] = ("infer",), **more: Any) -> Reply:
    return control.request("POST", KEYS, {"name": name, "scopes": list(scopes), **more})


def secret_of(control: Control, *scopes: str, name: str = "some", **more: Any) -> str:
    reply = create(control, name, scopes, **more)
    assert reply.status == 201, reply.json
    secret: str = reply.json["key"]
    return secret


def chat(control: Control, secret: str | None, **headers: str) -> Reply:
    """A routed request for an alias that there is not: 404 says that the caller was let in."""
    nobody = Control(router=control.router, probes=control.probes, token=None)
    return nobody.request("POST", CHAT, CHAT_BODY, token=secret, **headers)


class TestCreate:
    def test_the_key_is_in_this_answer_and_nowhere_else(self, control: Control) -> None:
        reply = create(control, "chat", ("observe", "infer"), max_concurrency=3)
        assert reply.status == 201
        assert reply.headers["cache-control"] == "no-store"
        secret = reply.json.pop("key")
        assert secret.startswith("anvil_")
        assert len(secret) == 49  # 256 bits in 43 characters
        row = ApiKey.objects.get()
        assert reply.json == {
            "id": row.pk,
            "name": "chat",
            "prefix": secret[:12],
            "scopes": ["infer", "observe"],
            "max_concurrency": 3,
            "expires_at": None,
            "created_at": row.created_at.isoformat(),
            "created_by": "bootstrap",
            "revoked": False,
            "revoked_at": None,
            "last_used_at": None,
        }
        assert row.digest == hashlib.sha256(secret.encode()).hexdigest()
        listed = control.request("GET", KEYS)
        assert listed.json == {"keys": [reply.json]}
        assert secret[12:].encode() not in listed.body

    def test_it_is_valid_at_once(self, control: Control) -> None:
        assert chat(control, secret_of(control, "infer")).status == 404

    def test_no_two_are_alike(self, control: Control) -> None:
        assert secret_of(control, "infer", name="a") != secret_of(control, "infer", name="b")

    def test_it_leaves_an_audit_entry(self, control: Control) -> None:
        secret_of(control, "infer", "operate", name="ops team")
        (entry,) = AuditEntry.objects.all()
        assert (entry.actor, entry.through, entry.action) == ("bootstrap", "rest", "create_key")
        assert (entry.subject, entry.result) == ("ops team", "infer,operate")

    def test_a_name_is_taken_once_and_for_all(self, control: Control) -> None:
        number = create(control).json["id"]
        control.request("DELETE", f"{KEYS}/{number}")
        reply = create(control)
        assert (reply.status, reply.json["error"]["code"]) == (409, "name_taken")
        assert ApiKey.objects.count() == 1

    @pytest.mark.parametrize(
        ("change", "param"),
        [
            ({"name": ""}, "name"),
            ({"name": " chat"}, "name"),
            ({"name": "a\nb"}, "name"),
            ({"name": "x" * 101}, "name"),
            ({"name": None}, "name"),
            ({"name": 1}, "name"),
            ({"name": "https://gpu-host.lan/v1"}, "name"),
            ({"name": "gpu-host:8101"}, "name"),
            ({"name": "10.9.8.7"}, "name"),
            ({"name": "bootstrap"}, "name"),
            ({"name": "anonymous"}, "name"),
            ({"name": "anvil_pasted"}, "name"),
            ({"name": "sk-0123456789"}, "name"),
            ({"scopes": []}, "scopes"),
            ({"scopes": ["infer", "infer"]}, "scopes"),
            ({"scopes": ["admin"]}, "scopes"),
            ({"scopes": "infer"}, "scopes"),
            ({"scopes": [["infer"]]}, "scopes"),
            ({"scopes": {"infer": True}}, "scopes"),
            ({"scopes": None}, "scopes"),
            ({"max_concurrency": 0}, "max_concurrency"),
            ({"max_concurrency": 100_001}, "max_concurrency"),
            ({"max_concurrency": True}, "max_concurrency"),
            ({"max_concurrency": 1.0}, "max_concurrency"),
            ({"max_concurrency": "1"}, "max_concurrency"),
            ({"expires_at": "tomorrow"}, "expires_at"),
            ({"expires_at": 1_900_000_000}, "expires_at"),
            ({"expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
            ({"key": "mine"}, None),
            ({"revoked": False}, None),
        ],
    )
    def test_every_field_has_its_rule(
        self, control: Control, change: dict[str, object], param: str | None
    ) -> None:
        reply = control.request("POST", KEYS, {"name": "chat", "scopes": ["infer"], **change})
        assert reply.status == 400
        assert (reply.json["error"]["code"], reply.json["error"]["param"]) == ("invalid_request", param)
        assert ApiKey.objects.count() == 0
        assert AuditEntry.objects.count() == 0

    @pytest.mark.parametrize("body", [{}, {"name": "chat"}, {"scopes": ["infer"]}, b"[]", b"", b'{"name":'])
    def test_a_body_lacks_nothing(self, control: Control, body: object) -> None:
        reply = control.request("POST", KEYS, body)
        assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_request")

    def test_a_failing_database_leaves_no_key(self, control: Control) -> None:
        with failing_database("routing_apikey"):
            reply = create(control)
        assert (reply.status, reply.json["error"]["code"]) == (503, "not_persisted")
        assert "key" not in reply.json
        assert [key.name for key in control.router.ring._by_digest.values()] == ["bootstrap"]
        with failing_database("routing_auditentry"):
            assert create(control).status == 503
        assert ApiKey.objects.count() == 0

    def test_another_process_owns_the_ledger(self, control: Control) -> None:
        control.router.owns_ledger = False
        assert create(control).json["error"]["code"] == "not_ledger_owner"
        assert ApiKey.objects.count() == 0


class TestScopes:
    SURFACES = (
        ("POST", CHAT, "infer", 404),
        ("GET", "/v1/models", "infer observe", 200),
        ("GET", "/v1/models/capacity", "observe", 200),
        ("GET", "/v1/models/capabilities", "observe", 200),
        ("GET", "/v1/decisions", "observe", 200),
        ("GET", "/v1/router/status", "observe", 200),
        ("GET", "/metrics", "observe", 200),
        ("GET", TRANSITION, "operate", 200),
        ("POST", TRANSITION, "operate", 400),
        ("GET", INTENT, "configure", 200),
        ("PUT", INTENT, "configure", 400),
        ("GET", KEYS, "configure", 200),
        ("POST", KEYS, "configure", 400),
        ("DELETE", f"{KEYS}/999", "configure", 404),
        ("GET", "/v1/admin/snapshots", "configure", 200),
    )

    @pytest.mark.parametrize("scope", [scope.value for scope in Scope])
    def test_a_key_opens_what_its_scope_says_and_nothing_else(self, control: Control, scope: str) -> None:
        """A chat key cannot read capacity, nor quiesce."""
        secret = secret_of(control, scope)
        before = control.facts()
        for method, path, scopes, status in self.SURFACES:
            body = CHAT_BODY if path == CHAT else {"nothing": "valid"}
            reply = control.request(method, path, body if method in ("POST", "PUT") else None, token=secret)
            if scope in scopes.split():
                assert reply.status == status, (method, path)
            else:
                assert reply.status == 403, (method, path)
                assert reply.json["error"]["code"] == "insufficient_scope"
        assert control.facts() == before

    def test_no_or_a_wrong_key_is_401(self, control: Control) -> None:
        nobody = Control(router=control.router, probes=control.probes, token=None)
        for method, path, _, _ in self.SURFACES:
            for token in (None, "wrong"):
                body = {} if method in ("POST", "PUT") else None
                reply = nobody.request(method, path, body, token=token)
                assert (reply.status, reply.json["error"]["code"]) == (401, "invalid_api_key"), path
                assert reply.headers["www-authenticate"] == "Bearer"

    def test_a_process_that_stands_by_knows_no_key_and_says_503(self, control: Control) -> None:
        """Keys are read after the ledger's lock is taken: until then nobody's key is wrong."""
        secret = secret_of(control, "infer", "observe", "operate")
        control.router.ring.replace([])
        control.router.owns_ledger = False
        assert chat(control, secret).json["error"]["code"] == "not_ledger_owner"
        for path in ("/v1/models", "/v1/models/capacity", TRANSITION):
            reply = control.request("GET", path, token=secret)
            assert (reply.status, reply.json["error"]["code"]) == (503, "not_ledger_owner"), path
            assert reply.headers["retry-after"] == "1"

    def test_it_may_be_presented_in_either_header(self, control: Control) -> None:
        secret = secret_of(control, "infer")
        assert chat(control, None, HTTP_X_API_KEY=secret).status == 404
        assert chat(control, None, HTTP_AUTHORIZATION=f"bearer {secret}").status == 404
        assert chat(control, None, HTTP_AUTHORIZATION=f"Basic {secret}").status == 401

    def test_the_bootstrap_token_may_do_everything(self, control: Control) -> None:
        for method, path, _, status in self.SURFACES:
            body = CHAT_BODY if path == CHAT else {"nothing": "valid"}
            reply = control.request(method, path, body if method in ("POST", "PUT") else None)
            assert reply.status == status, (method, path)

    def test_with_no_key_at_all_nothing_is_open(self, control: Control) -> None:
        control.router.ring.set_bootstrap(None)
        assert chat(control, TOKEN).status == 401
        assert control.request("GET", TRANSITION).status == 401

    def test_the_token_of_a_new_configuration_counts_from_its_activation_on(self, control: Control) -> None:
        from tests.web.control_support import CONFIG, install

        install(control.router, CONFIG.replace('"ANVIL_TOKEN"', '"OTHER_TOKEN"'), snapshot_id=2)
        assert control.request("GET", KEYS).status == 401
        assert control.request("GET", KEYS, token=ENVIRON["OTHER_TOKEN"]).status == 200


class TestRevoke:
    def test_it_fails_on_its_next_request(self, control: Control) -> None:
        secret = secret_of(control, "infer", name="chat")
        number = ApiKey.objects.get().pk
        assert chat(control, secret).status == 404
        reply = control.request("DELETE", f"{KEYS}/{number}")
        assert (reply.status, reply.json["id"], reply.json["revoked"]) == (200, number, True)
        assert chat(control, secret).status == 401
        (listed,) = control.request("GET", KEYS).json["keys"]
        assert (listed["revoked"], listed["revoked_at"]) == (True, reply.json["revoked_at"])
        assert [(entry.action, entry.subject) for entry in AuditEntry.objects.order_by("id")] == [
            ("create_key", "chat"),
            ("revoke_key", "chat"),
        ]

    def test_it_stays_revoked_after_a_restart(self, control: Control) -> None:
        secret = secret_of(control, "infer")
        control.request("DELETE", f"{KEYS}/{ApiKey.objects.get().pk}")
        control.router.ring._revoked.clear()
        keys.refresh(control.router)
        assert chat(control, secret).status == 401

    def test_others_go_on(self, control: Control) -> None:
        gone, kept = secret_of(control, "infer", name="a"), secret_of(control, "infer", name="b")
        control.request("DELETE", f"{KEYS}/{ApiKey.objects.get(name='a').pk}")
        assert (chat(control, gone).status, chat(control, kept).status) == (401, 404)

    def test_a_stored_name_that_is_an_address_is_shown_to_who_manages_keys_alone(
        self, control: Control
    ) -> None:
        """Its key goes on; metrics know it by its number."""
        secret = secret_of(control, "infer")
        number = ApiKey.objects.get().pk
        ApiKey.objects.filter(pk=number).update(name="http://10.9.8.7:8101")
        keys.refresh(control.router)
        assert chat(control, secret).status == 404
        principal = control.router.ring.verify(secret)
        assert principal is not None
        assert principal.name == f"key:{number}"
        (row,) = control.request("GET", KEYS).json["keys"]
        assert row["name"] == "http://10.9.8.7:8101"

    def test_twice_is_once(self, control: Control) -> None:
        secret_of(control, "infer")
        path = f"{KEYS}/{ApiKey.objects.get().pk}"
        first = control.request("DELETE", path).json
        assert control.request("DELETE", path).json == first
        assert AuditEntry.objects.filter(action="revoke_key").count() == 1

    @pytest.mark.parametrize("number", ["1", "0", "99999999999999999999999999"])
    def test_a_key_that_there_is_not(self, control: Control, number: str) -> None:
        reply = control.request("DELETE", f"{KEYS}/{number}")
        assert (reply.status, reply.json["error"]["code"]) == (404, "unknown_key")

    def test_a_failing_database_does_not_keep_it_alive(self, control: Control) -> None:
        secret = secret_of(control, "infer")
        with failing_database("routing_apikey"):
            reply = control.request("DELETE", f"{KEYS}/{ApiKey.objects.get().pk}")
        assert (reply.status, reply.json["error"]["code"]) == (503, "not_persisted")
        assert chat(control, secret).status == 401
        keys.refresh(control.router)
        assert chat(control, secret).status == 401


class TestLimits:
    def test_it_ends_at_its_expiry(self, control: Control) -> None:
        soon = timezone.now() + datetime.timedelta(hours=1)
        secret = secret_of(control, "infer", expires_at=soon.isoformat())
        assert chat(control, secret).status == 404
        control.router.ring._wall_clock = lambda: soon.timestamp()
        assert chat(control, secret).status == 401

    def test_a_moment_without_a_zone_is_utc(self, control: Control) -> None:
        reply = create(control, expires_at="2099-12-31T23:00:00")
        assert reply.json["expires_at"] == "2099-12-31T23:00:00+00:00"
        assert create(control, "b", expires_at="2099-12-31T23:00:00-05:00").json["expires_at"] == (
            "2100-01-01T04:00:00+00:00"
        )

    def test_over_its_concurrency_it_is_429_before_any_gate(self, control: Control) -> None:
        secret = secret_of(control, "infer", max_concurrency=1)
        principal = control.router.ring.verify(secret)
        assert principal is not None
        assert control.router.ring.enter(principal)
        reply = chat(control, secret)
        assert (reply.status, reply.json["error"]["code"]) == (429, "key_concurrency_exceeded")
        assert reply.headers["retry-after"] == "1"
        reply = control.request("POST", CHAT, b"no JSON", token=secret)
        assert reply.status == 429
        control.router.ring.leave(principal)
        assert chat(control, secret).status == 404
        assert control.router.ring.in_flight() == {}

    def test_the_limit_is_of_routed_requests_alone(self, control: Control) -> None:
        secret = secret_of(control, "observe", "infer", max_concurrency=1)
        principal = control.router.ring.verify(secret)
        assert principal is not None
        assert control.router.ring.enter(principal)
        assert control.request("GET", "/v1/models/capacity", token=secret).status == 200


class TestLastUsed:
    def test_it_is_written_in_the_background(self, control: Control) -> None:
        used, unused = secret_of(control, "infer", name="used"), secret_of(control, "infer", name="unused")
        control.router.ring._wall_clock = lambda: 1_900_000_000.25
        assert unused != used
        chat(control, used)
        assert ApiKey.objects.get(name="used").last_used_at is None
        keys.write_back_last_used(control.router)
        moment = datetime.datetime(2030, 3, 17, 17, 46, 40, 250_000, tzinfo=datetime.UTC)
        assert ApiKey.objects.get(name="used").last_used_at == moment
        assert ApiKey.objects.get(name="unused").last_used_at is None

    def test_a_request_costs_no_query(self, control: Control, django_assert_num_queries: Any) -> None:
        secret = secret_of(control, "infer", "observe", "operate")
        with django_assert_num_queries(0):
            chat(control, secret)
            control.request("GET", TRANSITION, token=secret)
            control.request("GET", "/v1/models", token=secret)


def test_no_key_or_token_is_in_any_log_answer_or_row(control: Control) -> None:
    captured = io.StringIO()
    handler = logging.StreamHandler(captured)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    for name in ("anvil", "django", "django.request"):
        logging.getLogger(name).addHandler(handler)
    bodies = []
    try:
        reply = create(control, "chat", ("infer", "observe", "operate", "configure"))
        secret = reply.json["key"]
        for token in (secret, TOKEN):
            for method, path, _, _ in TestScopes.SURFACES:
                sent = {"model": secret, "reason": secret, "name": secret}
                bodies.append(
                    control.request(
                        method, path, sent if method in ("POST", "PUT") else None, token=token
                    ).body
                )
            control.do("quiesce", "solo")
            bodies.append(control.do("readmit", "solo", reason=secret[6:40]).body)
            bodies.append(control.request("GET", f"{TRANSITION}?tier_id={secret}", token=token).body)
        bodies.append(control.request("DELETE", f"{KEYS}/{ApiKey.objects.get().pk}").body)
        bodies.append(chat(control, secret).body)
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        for name in ("anvil", "django", "django.request"):
            logging.getLogger(name).removeHandler(handler)
    rows = [*ApiKey.objects.values_list(), *AuditEntry.objects.exclude(action="readmit").values_list()]
    for place in (captured.getvalue(), repr(bodies), repr(rows), repr(control.router.ring)):
        assert secret not in place
        assert secret[12:] not in place
        assert TOKEN not in place


def test_the_service_wants_the_ledger(control: Control) -> None:
    from routing.refusals import Refused

    control.router.owns_ledger = False
    with pytest.raises(Refused, match="Another process is serving"):
        keys.create(control.router, name="a", scopes=["infer"], actor="ada", through=Through.CONSOLE)
    with pytest.raises(Refused, match="Another process is serving"):
        keys.revoke(control.router, 1, actor="ada", through=Through.CONSOLE)
