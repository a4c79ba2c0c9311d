"""The grammars of names (Q-R003, replica contract; transition contract; contract 1 for aliases)."""

from collections.abc import Callable
from functools import partial

import pytest

from admission.identifiers import (
    DEFAULT_REASON,
    is_alias,
    is_correlation_id,
    is_digest,
    is_environment_name,
    is_label,
    is_plain_name,
    is_qualification_ref,
    is_reason_code,
    is_safe_id,
    is_secret_shaped,
    normalise_alias,
)

Predicate = Callable[[object], bool]
short_name = partial(is_plain_name, limit=10)

ACCEPTED: list[tuple[Predicate, str]] = [
    (is_safe_id, "a"),
    (is_safe_id, "Member_a-1"),
    (is_safe_id, "a" * 64),
    (is_reason_code, DEFAULT_REASON),
    (is_reason_code, "-"),
    (is_reason_code, "r" * 128),
    (is_qualification_ref, "bench.2026-09-01:run-7"),
    (is_qualification_ref, "0" * 128),
    (is_label, "0.11.0+cu126"),
    (is_label, "a" * 128),
    (short_name, "llama.cpp"),
    (short_name, "ops team 2"),
    (short_name, "4-bit_1.2+"),
    (short_name, "v1.2.3"),
    (short_name, "a" * 10),
    (is_digest, "sha256:" + "0123456789abcdef" * 4),
    (is_correlation_id, "req_1:a.b-c"),
    (is_correlation_id, "r" * 128),
    (is_environment_name, "ANVIL_TOKEN"),
    (is_environment_name, "_T1"),
    (is_environment_name, "A_VERY_LONG_NAME_OF_AN_ENVIRONMENT_VARIABLE_FOR_HOST_1"),
    (is_environment_name, "CONFIGURATIONMANAGEMENTTOKEN"),
    (is_alias, "llm.primary"),
    (is_alias, "qwen/qwen3-32b:fp8"),
    (is_alias, "0"),
    (is_alias, "a" * 128),
]

REFUSED: list[tuple[Predicate, object]] = [
    (is_safe_id, ""),
    (is_safe_id, "1a"),
    (is_safe_id, "_a"),
    (is_safe_id, "a b"),
    (is_safe_id, "a.b"),
    (is_safe_id, "a\n"),
    (is_safe_id, "é"),
    (is_safe_id, "a" * 65),
    (is_safe_id, None),
    (is_safe_id, b"a"),
    (is_safe_id, 1),
    (is_reason_code, ""),
    (is_reason_code, "two words"),
    (is_reason_code, "r" * 129),
    (is_reason_code, "a\n"),
    (is_qualification_ref, ""),
    (is_qualification_ref, ".hidden"),
    (is_qualification_ref, "runs/7"),
    (is_qualification_ref, "https://wiki.example/run-7"),
    (is_qualification_ref, "0" * 129),
    (short_name, ""),
    (short_name, " a"),
    (short_name, "a "),
    (short_name, "-a"),
    (short_name, "a\nb"),
    (short_name, "a\n"),
    (short_name, "é"),
    (short_name, "ftp://a"),
    (short_name, "gpu:8000"),
    (short_name, "a/b"),
    (short_name, "a@b"),
    (short_name, "::1"),
    (short_name, "10.0.0.5"),
    (short_name, "on 1.2.3.4"),
    (short_name, "a" * 11),
    (short_name, None),
    (short_name, b"a"),
    (is_label, "+1"),
    (is_label, "a:b"),
    (is_label, "a" * 129),
    (is_digest, "sha256:" + "0" * 63),
    (is_digest, "sha256:" + "0" * 65),
    (is_digest, "sha256:" + "A" * 64),
    (is_digest, "sha512:" + "0" * 64),
    (is_correlation_id, "-a"),
    (is_correlation_id, "r" * 129),
    (is_environment_name, ""),
    (is_environment_name, "1TOKEN"),
    (is_environment_name, "token"),
    (is_environment_name, "sk-live-abc"),
    (is_environment_name, "hf_abcdef"),
    (is_environment_name, "AKIAIOSFODNN7EXAMPLE"),
    (is_environment_name, "TOKEN_0123456789ABCDEF0123"),
    (is_environment_name, "A" * 129),
    (is_alias, ""),
    (is_alias, ".a"),
    (is_alias, "Llm"),
    (is_alias, "a b"),
    (is_alias, "a" * 129),
    (is_alias, "capacity"),
    (is_alias, "capabilities"),
    (is_alias, "fingerprints"),
    (is_alias, None),
]


@pytest.mark.requirement("Q-R003", "contract 1")
@pytest.mark.parametrize(("predicate", "value"), ACCEPTED)
def test_a_value_of_the_grammar_is_accepted(predicate: Predicate, value: str) -> None:
    assert predicate(value) is True


@pytest.mark.requirement("Q-R003", "contract 1")
@pytest.mark.parametrize(("predicate", "value"), REFUSED)
def test_a_value_outside_the_grammar_is_refused(predicate: Predicate, value: object) -> None:
    assert predicate(value) is False


def test_a_subclass_of_str_is_no_built_in_string() -> None:
    class Text(str):
        __slots__ = ()

    assert is_safe_id(Text("a")) is False


@pytest.mark.requirement("contract 1")
def test_an_alias_is_trimmed_and_lower_cased() -> None:
    assert normalise_alias("  LLM.Primary\t") == "llm.primary"


@pytest.mark.parametrize(
    "value",
    [
        *("sk-abc", "sk_live_1", "hf_abc", "ghp_abc", "github_pat_1", "xoxb-1", "glpat-1", "nvapi-1"),
        *("Bearer x", "eyJhbGciOiJIUzI1NiJ9", "AIzaSy", "0123456789abcdef0123", "name-0123456789abcdef0123"),
    ],
)
def test_what_looks_like_a_key_is_secret_shaped(value: str) -> None:
    assert is_secret_shaped(value) is True


@pytest.mark.parametrize(
    "value", ["", "member-a", "ANVIL_TOKEN", "0123456789abcdef012", "internationalization"]
)
def test_ordinary_names_are_not_secret_shaped(value: str) -> None:
    assert is_secret_shaped(value) is False
