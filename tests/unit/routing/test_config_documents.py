"""Whole documents: size, encoding, syntax, hostile shapes (Q-R004, Q-T006, contract 1)."""

import datetime
import io
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing.config import (
    FIELD_RULES,
    ConfigError,
    Fault,
    RouterConfig,
    load_config,
    parse_config,
    read_config,
)
from routing.documents import MAX_DOCUMENT_BYTES, read_bounded, render_path
from tests import corpus

DIRECT = corpus.read("config/valid/direct.toml")


def only_fault(data: bytes) -> str:
    with pytest.raises(ConfigError) as refused:
        parse_config(data)
    assert len(refused.value.faults) == 1
    return str(refused.value.faults[0])


def padded(size: int) -> bytes:
    return DIRECT + b"#" * (size - len(DIRECT) - 1) + b"\n"


@pytest.mark.requirement("Q-R004", "Q-T006", "contract 1")
def test_a_document_of_one_mebibyte_is_read_and_one_byte_more_is_not() -> None:
    assert len(padded(1_048_576)) == 1_048_576
    assert parse_config(padded(1_048_576)) == parse_config(DIRECT)
    assert only_fault(padded(1_048_577)) == "document: is larger than 1048576 bytes"


@pytest.mark.requirement("Q-T006")
def test_size_is_judged_before_anything_is_decoded() -> None:
    assert only_fault(b"\xff" * 1_048_577) == "document: is larger than 1048576 bytes"
    assert only_fault(b"\xff" * 1_048_576) == "document: is not UTF-8"


@pytest.mark.requirement("Q-T006")
def test_a_file_is_read_once_and_at_most_one_byte_over_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "big.toml"
    path.write_bytes(b"#" * (MAX_DOCUMENT_BYTES + 4096))
    assert len(read_bounded(path)) == 1_048_577
    opened: list[object] = []
    real_open = io.open

    def counting_open(*args: object, **kwargs: object) -> object:
        opened.append(args[0])
        return real_open(*args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", counting_open)
    with pytest.raises(ConfigError):
        load_config(path)
    assert opened == [path]


@pytest.mark.requirement("Q-T006")
def test_a_descriptor_is_read_from_where_it_stands_and_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "router.toml"
    path.write_bytes(DIRECT)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert read_bounded(descriptor) == DIRECT
        assert read_bounded(descriptor) == b""
    finally:
        os.close(descriptor)


@pytest.mark.requirement("Q-T006")
def test_a_pipe_that_gives_little_at_a_time_is_read_to_its_end() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, DIRECT[:10])
        os.write(writing, DIRECT[10:])
        os.close(writing)
        assert parse_config(read_bounded(reading)) == parse_config(DIRECT)
    finally:
        os.close(reading)


@pytest.mark.requirement("contract 1")
@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\xff\xfe", "is not UTF-8"),
        (b"a = \xc3(\n", "is not UTF-8"),
        (b"a = 1\na = 2\n", "is not valid TOML: Cannot overwrite a value (at line 2, column 6)"),
        (b"[router]\n[router]\n", "is not valid TOML: Cannot declare … twice (at line 2, column 8)"),
        (b"a = 1\x00\n", "is not valid TOML: Expected newline or end of document after a statement"),
        (b"a = 'x", "is not valid TOML: "),
        (b"a = 2026-13-45\n", "is not valid TOML: "),
        (b"\xef\xbb\xbf[router]\n", "is not valid TOML: Invalid statement (at line 1, column 1)"),
        (b"a = " + b"9" * 5000, "is not valid TOML: a number has too many digits"),
        (b"a = " + b"[" * 100_000, "is nested too deeply"),
        (b"a = " + b"{a=" * 100_000, "is nested too deeply"),
        (b".".join([b"a"] * 65) + b" = 1\n", "has a key of more than 64 dotted parts"),
        (b"[" + b' . "a b"' * 65 + b"]\n", "has a key of more than 64 dotted parts"),
        (b"x = { " + b"a." * 400_000 + b"a = 1 }\n", "has a key of more than 64 dotted parts"),
    ],
)
def test_what_can_not_be_parsed_is_a_single_fault(data: bytes, fault: str) -> None:
    assert only_fault(data).startswith(f"document: {fault}")


@pytest.mark.requirement("contract 1")
@pytest.mark.parametrize(
    "text",
    [
        "['sk-live-1']\n['sk-live-1']",
        "a = { 'sk-live-1' = 1, 'sk-live-1' = 2 }",
        "[a.'sk-live-1 ) (x']\n[a.'sk-live-1 ) (x']",
        "[a.'sk-live-1'.c]\nx = 1\n[a]\n'sk-live-1'.c.d = 2",
    ],
)
def test_a_syntax_fault_does_not_repeat_the_keys_of_the_document(text: str) -> None:
    told = only_fault(text.encode())
    assert told.startswith("document: is not valid TOML: ")
    assert "sk-live" not in told


def test_dots_in_strings_and_comments_are_no_key_parts() -> None:
    dots = "a." * 100
    text = f'"""{dots}"""', f"'''{dots}'''", f"'{dots}'", f'"\\"{dots}"'
    for string in text:
        data = DIRECT + f"# {dots}\nengine = 'x'\nextra_body.a = {string} # {dots}\n".encode()
        assert "a.a.a." in str(parse_config(data).tiers[0].extra_body["a"])


def test_a_document_full_of_faults_is_still_read_in_one_pass() -> None:
    """60,000 empty tiers: all faults are told, in order; quadratic work would not end here."""
    with pytest.raises(ConfigError) as refused:
        parse_config(b"[[router.tiers]]\n" * 60_000)
    assert len(refused.value.faults) == 180_000
    assert refused.value.faults[-1] == Fault("router.tiers[59999].context_limit", "is required")


@pytest.mark.requirement("Q-R004")
def test_only_relations_between_members_leave_a_configuration_to_look_at() -> None:
    """What the join has codes of its own for; parse_config refuses it all the same."""
    cross_host = read_config(corpus.read("config/invalid/cross-host.toml"))
    assert cross_host.config is not None
    assert [fault.path for fault in cross_host.faults] == ["router.tiers[0].replicas[1].host_id"]
    assert read_config(corpus.read("config/invalid/duplicate-members.toml")).config is None
    clean = read_config(DIRECT)
    assert (clean.config, clean.faults) == (parse_config(DIRECT), ())


def test_paths_are_rendered_on_one_line() -> None:
    assert render_path(()) == "document"
    assert render_path(("router", "tiers", 1, "replicas", 0, "id")) == "router.tiers[1].replicas[0].id"
    assert render_path(("a.b", "c\nd", "")) == '"a.b"."c\\nd".""'
    assert render_path(("k" * 70,)) == f'"{"k" * 64}"'
    assert render_path(("a", "user@host", "sk-live")) == "a.<hidden>.<hidden>"


# --- Anything at all ---


def outcome(data: bytes) -> RouterConfig | tuple[Fault, ...]:
    try:
        return parse_config(data)
    except ConfigError as error:
        return error.faults


@pytest.mark.requirement("contract 1")
@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_accepted_or_refused_with_faults(data: bytes) -> None:
    outcome(data)


@pytest.mark.requirement("contract 1")
@given(st.text(alphabet="[]{}=\"'.,#\n a1-_:tTrueinf+", max_size=80))
def test_arbitrary_text_of_toml_is_accepted_or_refused_with_faults(text: str) -> None:
    outcome(text.encode())


KEYS = sorted(
    {key for rules in FIELD_RULES.values() for key in rules}
    | {"server", "router", "model_routes", "tiers", "replicas", "replica_identity"}
    | {"purpose_models", "audio_routes", "capacity", "capabilities", "thinking", "other", "a.b", ""}
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(min_value=-(10**30), max_value=10**30),
    st.floats(),
    st.dates(),
    st.times(),
    st.datetimes(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(
        ["http://h", "http://u:p@h", "/x", "primary", "openai", "capacity", "sha256:" + "0" * 64]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)
TABLES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6)
SHAPED = st.fixed_dictionaries(
    {},
    optional={
        "server": TABLES | SCALARS,
        "router": st.fixed_dictionaries(
            {},
            optional={
                "model_routes": TABLES | SCALARS,
                "tiers": st.lists(TABLES | SCALARS, max_size=3) | SCALARS,
                "purpose_models": st.lists(TABLES, max_size=2),
                "audio_routes": st.lists(TABLES, max_size=2),
                "relay_timeout": SCALARS,
            },
        ),
        "other": VALUES,
    },
)


def toml(value: object) -> str:
    """An inline TOML value; independent of any renderer of the product."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml(str(key))} = {toml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(entry) for entry in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return repr(value)


@pytest.mark.requirement("contract 1")
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(SHAPED)
def test_arbitrary_documents_of_that_shape_are_accepted_or_refused_with_faults(
    document: dict[str, object],
) -> None:
    text = "\n".join(f"{key} = {toml(value)}" for key, value in document.items())
    faults = outcome(text.encode())
    if isinstance(faults, tuple):
        assert faults
        assert "is not valid TOML" not in str(faults[0])
        for fault in faults:
            assert "\n" not in str(fault)
            assert "u:p@h" not in str(fault)


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """A valid document with one span of it replaced or repeated."""
    data = draw(st.sampled_from([path.read_bytes() for path in corpus.documents("config", "valid")]))
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 60)))
    return data[:start] + draw(st.binary(max_size=8) | st.just(data[start:end] * 2)) + data[end:]


@pytest.mark.requirement("contract 1")
@settings(max_examples=300)
@given(mutations())
def test_a_damaged_document_is_accepted_or_refused_with_faults(data: bytes) -> None:
    outcome(data)
