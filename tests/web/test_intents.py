"""The quiesce intent as the closed legacy document: its strict parser, its literal bytes, its two verbs."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.core import MemberScope, TierAdmission, TierScope
from admission.intent_document import IntentDocument, IntentError, parse_document, serialise_document
from tests.web.control_support import INTENT, Control, audit_rows, failing_database, intent_rows

pytestmark = pytest.mark.requirement("contract 3 intent", "C-T010")

LEGACY = b'{"tiers":{"heavy":{"reason":"operator","state":"quiesced"}},"version":1}'
"""Of a router that knew no members."""
WITH_MEMBERS = (
    b'{"members":{"chat":{"member-a":"kernel-upgrade","member-b":"promotion"}},'
    b'"tiers":{"chat":{"reason":"swap","state":"quiesced"},"solo":{"reason":"promotion","state":"quiesced"}},'
    b'"version":1}'
)


# Reading -----------------------------------------------------------------------------------------------


def test_a_document_without_members() -> None:
    document = parse_document(LEGACY)
    assert document == IntentDocument(tiers={"heavy": "operator"}, members={})
    assert document.intents == (("heavy", None, "operator"),)


def test_a_document_with_members() -> None:
    document = parse_document(WITH_MEMBERS)
    assert document.tiers == {"chat": "swap", "solo": "promotion"}
    assert document.members == {"chat": {"member-a": "kernel-upgrade", "member-b": "promotion"}}


def test_a_tiers_promotion_is_passed_over_and_a_members_is_not() -> None:
    assert parse_document(WITH_MEMBERS).intents == (
        ("chat", None, "swap"),
        ("chat", "member-a", "kernel-upgrade"),
        ("chat", "member-b", "promotion"),
    )


def test_entries_about_removed_tiers_may_have_any_name() -> None:
    document = parse_document(
        '{"version": 1, "tiers": {"an old: tïer": {"state": "quiesced", "reason": "x"}}, '
        '"members": {"1st": {"member-a": "y"}, "none": {}}}'.encode()
    )
    assert document.intents == (("an old: tïer", None, "x"), ("1st", "member-a", "y"))


def variant(**changes: Any) -> bytes:
    base: dict[str, Any] = {
        "version": 1,
        "tiers": {"chat": {"state": "quiesced", "reason": "swap"}},
        "members": {"chat": {"member-a": "swap"}},
    }
    return json.dumps({**base, **changes}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"1",
        b"{}",
        b'{"version": 1}',
        b'{"tiers": {}}',
        b"\xff",
        b'{"version": 1, "tiers": {}} x',
        b'{"version": 1, "version": 1, "tiers": {}}',
        b'{"version": 1, "tiers": {"chat": {"state": "quiesced", "reason": "a"}, '
        b'"chat": {"state": "quiesced", "reason": "b"}}}',
        b'{"version": 1, "tiers": {"chat": {"state": "quiesced", "reason": "a", "reason": "b"}}}',
        b'{"version": 1, "tiers": {}, "members": {"chat": {"member-a": "a", "member-a": "b"}}}',
        b'{"version": 1, "tiers": {}, "members": {"chat": {}, "chat": {}}}',
        b'{"version": NaN, "tiers": {}}',
        b'{"version": 1, "tiers": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
        variant(extra=1),
        variant(version=2),
        variant(version=0),
        variant(version=True),
        variant(version=1.0),
        variant(version="1"),
        variant(version=None),
        variant(tiers=None),
        variant(tiers=[]),
        variant(tiers="chat"),
        variant(tiers={"": {"state": "quiesced", "reason": "swap"}}),
        variant(tiers={"chat": "swap"}),
        variant(tiers={"chat": None}),
        variant(tiers={"chat": {"state": "quiesced"}}),
        variant(tiers={"chat": {"reason": "swap"}}),
        variant(tiers={"chat": {"state": "admitting", "reason": "swap"}}),
        variant(tiers={"chat": {"state": ["quiesced"], "reason": "swap"}}),
        variant(tiers={"chat": {"state": "quiesced", "reason": "swap", "since": 1}}),
        variant(tiers={"chat": {"state": "quiesced", "reason": ""}}),
        variant(tiers={"chat": {"state": "quiesced", "reason": None}}),
        variant(tiers={"chat": {"state": "quiesced", "reason": "two words"}}),
        variant(tiers={"chat": {"state": "quiesced", "reason": "x" * 129}}),
        variant(members=None),
        variant(members=[]),
        variant(members={"": {"member-a": "swap"}}),
        variant(members={"chat": None}),
        variant(members={"chat": []}),
        variant(members={"chat": ["member-a"]}),
        variant(members={"chat": {"member-a": None}}),
        variant(members={"chat": {"member-a": 1}}),
        variant(members={"chat": {"member-a": ""}}),
        variant(members={"chat": {"member-a": {"state": "quiesced", "reason": "swap"}}}),
        variant(members={"chat": {"": "swap"}}),
        variant(members={"chat": {"1st": "swap"}}),
        variant(members={"chat": {"a/b": "swap"}}),
        variant(members={"gone": {"member-a": "not a code"}}),
    ],
)
def test_anything_but_the_closed_form_is_refused_in_a_fixed_text(data: bytes) -> None:
    with pytest.raises(IntentError) as caught:
        parse_document(data)
    assert caught.value.code == "document_malformed"
    assert str(caught.value) == "the intent document is not of its closed form"
    assert caught.value.__cause__ is None


def test_its_size_is_bounded() -> None:
    exact = LEGACY + b" " * (1_048_576 - len(LEGACY))
    assert parse_document(exact).tiers == {"heavy": "operator"}
    with pytest.raises(IntentError) as caught:
        parse_document(exact + b" ")
    assert caught.value.code == "document_too_large"
    assert str(caught.value) == "the intent document is larger than 1 MiB"


# Writing -----------------------------------------------------------------------------------------------

SCOPES = [
    TierScope("heavy"),
    TierScope("solo"),
    TierScope("chat", None, "capacity", (MemberScope("member-b", 1), MemberScope("member-a", 1))),
]


def test_without_a_quiesced_member_the_document_is_byte_for_byte_the_old_one() -> None:
    ledger = TierAdmission(SCOPES, quiesced=[("heavy", None, "operator")])
    assert serialise_document(ledger.snapshots()) == LEGACY
    assert serialise_document(TierAdmission(SCOPES).snapshots()) == b'{"tiers":{},"version":1}'


def test_with_members_it_is_sorted_and_without_blanks() -> None:
    intents = [
        ("solo", None, "promotion"),
        ("chat", "member-b", "promotion"),
        ("chat", "member-a", "kernel-upgrade"),
        ("chat", None, "swap"),
    ]
    assert serialise_document(TierAdmission(SCOPES, quiesced=intents).snapshots()) == WITH_MEMBERS


REASONS = st.from_regex(r"[A-Za-z0-9._-]{1,128}", fullmatch=True)
PLACES = st.sampled_from(
    [("heavy", None), ("solo", None), ("chat", None), ("chat", "member-a"), ("chat", "member-b")]
)


@given(st.dictionaries(PLACES, REASONS))
def test_what_is_written_reads_as_what_was_quiesced(held: dict[tuple[str, str | None], str]) -> None:
    ledger = TierAdmission(SCOPES, quiesced=[(*place, reason) for place, reason in held.items()])
    document = parse_document(serialise_document(ledger.snapshots()))
    found = {(tier_id, None): reason for tier_id, reason in document.tiers.items()} | {
        (tier_id, member_id): reason
        for tier_id, members in document.members.items()
        for member_id, reason in members.items()
    }
    assert found == held


# REST --------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
class TestExport:
    def test_of_nothing(self, control: Control) -> None:
        reply = control.request("GET", INTENT)
        assert (reply.status, reply.body) == (200, b'{"tiers":{},"version":1}')
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["cache-control"] == "no-store"

    def test_of_what_is_quiesced_in_memory(self, control: Control) -> None:
        """Also of a scope whose intent could not be stored: it is what holds now."""
        control.do("quiesce", "chat", "member-a", reason="kernel-upgrade")
        with failing_database("admission_admissionintent"):
            control.do("quiesce", "solo", reason="emergency")
        assert control.request("GET", INTENT).body == (
            b'{"members":{"chat":{"member-a":"kernel-upgrade"}},'
            b'"tiers":{"solo":{"reason":"emergency","state":"quiesced"}},"version":1}'
        )

    def test_without_the_ledger(self, control: Control) -> None:
        control.router.owns_ledger = False
        reply = control.request("GET", INTENT)
        assert (reply.status, reply.json["error"]["code"]) == (503, "not_ledger_owner")


@pytest.mark.django_db(transaction=True)
class TestImport:
    def test_it_quiesces_what_the_document_says(self, control: Control) -> None:
        reply = control.request("PUT", INTENT, WITH_MEMBERS)
        assert (reply.status, reply.json) == (
            200,
            {
                "quiesced": [
                    {"tier_id": "chat", "member_id": None},
                    {"tier_id": "chat", "member_id": "member-a"},
                    {"tier_id": "chat", "member_id": "member-b"},
                ],
                "ignored": 0,
            },
        )
        assert control.router.quiesced_scopes() == {
            ("chat", None),
            ("chat", "member-a"),
            ("chat", "member-b"),
        }
        assert intent_rows() == [
            ("chat", "", "swap", "bootstrap"),
            ("chat", "member-a", "kernel-upgrade", "bootstrap"),
            ("chat", "member-b", "promotion", "bootstrap"),
        ]
        assert audit_rows() == [
            ("bootstrap", "rest", "import_intent", "chat", "", "swap", "quiesced"),
            ("bootstrap", "rest", "import_intent", "chat", "member-a", "kernel-upgrade", "quiesced"),
            ("bootstrap", "rest", "import_intent", "chat", "member-b", "promotion", "quiesced"),
        ]
        assert control.router.availability.cached("chat", "member-a") is None

    def test_it_opens_nothing(self, control: Control) -> None:
        control.do("quiesce", "solo", reason="mine")
        control.request("PUT", INTENT, b'{"version": 1, "tiers": {}}')
        assert control.router.ledger.snapshot("solo").reason == "mine"
        assert intent_rows() == [("solo", "", "mine", "bootstrap")]

    def test_what_is_not_configured_is_ignored(self, control: Control) -> None:
        document = {
            "version": 1,
            "tiers": {
                "gone": {"state": "quiesced", "reason": "x"},
                "no/id": {"state": "quiesced", "reason": "x"},
            },
            "members": {"solo": {"member-a": "x"}, "chat": {"member-z": "x", "member-b": "x"}},
        }
        reply = control.request("PUT", INTENT, document)
        assert reply.json == {"quiesced": [{"tier_id": "chat", "member_id": "member-b"}], "ignored": 4}
        assert intent_rows() == [("chat", "member-b", "x", "bootstrap")]

    def test_export_and_import_carry_everything_to_another_router(self, control: Control) -> None:
        control.do("quiesce", "chat", "member-a", reason="kernel-upgrade")
        control.do("quiesce", "dynamic", reason="swap")
        document = control.request("GET", INTENT).body
        control.do("readmit", "chat", "member-a")
        control.do("readmit", "dynamic")
        assert control.request("PUT", INTENT, document).status == 200
        assert control.request("GET", INTENT).body == document

    @pytest.mark.parametrize(
        ("document", "status", "code"),
        [
            (b"", 400, "document_malformed"),
            (b"{}", 400, "document_malformed"),
            (b'{"version": 1, "tiers": {}, "tiers": {}}', 400, "document_malformed"),
            (
                b'{"version": 1, "tiers": {"chat": {"state": "quiesced", "reason": "x"}}, "members": null}',
                400,
                "document_malformed",
            ),
            (b" " * 1_048_577, 413, "request_too_large"),
        ],
    )
    def test_a_bad_document_is_refused_as_a_whole(
        self, control: Control, document: bytes, status: int, code: str
    ) -> None:
        before = control.facts()
        reply = control.request("PUT", INTENT, document)
        assert (reply.status, reply.json["error"]["code"]) == (status, code)
        assert control.facts() == before

    def test_a_failing_database_leaves_it_quiesced_in_memory_alone(self, control: Control) -> None:
        with failing_database("admission_admissionintent"):
            reply = control.request("PUT", INTENT, WITH_MEMBERS)
        assert (reply.status, reply.json["error"]["code"]) == (503, "intent_not_persisted")
        assert len(reply.json["quiesced"]) == 3
        assert control.router.ledger.snapshot("chat").reason == "swap"
        assert intent_rows() == []
        assert audit_rows() == []

    def test_another_content_type_is_refused(self, control: Control) -> None:
        reply = control.request("PUT", INTENT, LEGACY, CONTENT_TYPE="text/plain")
        assert (reply.status, reply.json["error"]["code"]) == (415, "unsupported_media_type")
