"""Multipart forms: found in a caller's bytes, changed in place, and written anew."""

import email
import email.policy
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.dialects.base import Failure, RequestError
from routing.dialects.forms import MAX_PARTS, Field, parse_form, write_form

pytestmark = pytest.mark.requirement("contract 2", "C-R013", "Q-R013")

AUDIO = b"RIFF\x00\r\n--b\r\n\xff\r\n--"
FORM = (
    b'--bnd\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
    b'--bnd\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
    b"Content-Type: audio/wav\r\n\r\n" + AUDIO + b"\r\n--bnd--\r\n"
)
HEADER = "multipart/form-data; boundary=bnd"


def read_independently(body: bytes, content_type: str) -> list[tuple[str | None, bytes]]:
    """Names and values as the standard library's mail parser finds them."""
    message = email.message_from_bytes(
        b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body, policy=email.policy.HTTP
    )
    return [
        (part.get_param("name", header="content-disposition"), part.get_payload(decode=True))
        for part in message.iter_parts()
    ]


def test_parts_are_found_where_they_lie():
    form = parse_form(FORM, HEADER)
    assert [part.name for part in form.parts] == ["model", "file"]
    assert [form.value(part) for part in form.parts] == [b"whisper", AUDIO]
    assert form.body is FORM
    assert form.content_type == HEADER


def test_a_field_is_replaced_in_place():
    changed = parse_form(FORM, HEADER).with_field("model", b"parakeet-v3")
    assert changed == FORM.replace(b"whisper", b"parakeet-v3")


def test_a_missing_field_becomes_the_first_part():
    form = parse_form(FORM, HEADER)
    added = form.with_field("language", b"en")
    assert added == b'--bnd\r\nContent-Disposition: form-data; name="language"\r\n\r\nen\r\n' + FORM
    assert [part.name for part in parse_form(added, HEADER).parts] == ["language", "model", "file"]


@pytest.mark.parametrize("preamble", [b"\r\n", b"\r\n\r\n", b"\nno dash\r\n"])
def test_a_preamble_stays_in_front_of_an_added_field(preamble):
    added = parse_form(preamble + FORM, HEADER).with_field("x", b"1")
    assert added.startswith(preamble + b"--bnd\r\nContent-Disposition")
    assert [part.name for part in parse_form(added, HEADER).parts] == ["x", "model", "file"]


@pytest.mark.parametrize(
    ("header", "announced"),
    [
        ("multipart/form-data; boundary=bnd", "multipart/form-data; boundary=bnd"),
        ('Multipart/Form-Data ; charset=utf-8; boundary="bnd"', "multipart/form-data; boundary=bnd"),
    ],
)
def test_the_boundary_is_announced_in_our_own_words(header, announced):
    assert parse_form(FORM, header).content_type == announced


def test_a_boundary_that_is_no_token_is_quoted():
    body = FORM.replace(b"bnd", b"a b:c")
    form = parse_form(body, 'multipart/form-data; boundary="a b:c"')
    assert form.content_type == 'multipart/form-data; boundary="a b:c"'
    assert len(form.parts) == 2


@pytest.mark.parametrize(
    ("body", "header"),
    [
        (FORM, "multipart/form-data"),
        (FORM, "multipart/form-data; boundary="),
        (FORM, 'multipart/form-data; boundary="a\\"b"'),
        (FORM, "multipart/form-data; boundary=é"),
        (FORM, f"multipart/form-data; boundary={'b' * 141}"),
        (FORM, "multipart/form-data; boundary=other"),
        (b"", HEADER),
        (b"--bnd", HEADER),
        (FORM[:-8], HEADER),
        (FORM.replace(b"\r\n\r\nwhisper", b"\r\nwhisper"), HEADER),
        (FORM.replace(b'; name="model"', b""), HEADER),
        (FORM.replace(b"model", b"\xff"), HEADER),
        (FORM.replace(b"Content-Disposition: form-data; name", b"X: name", 1), HEADER),
        (FORM.replace(b"whisper", b"w" * 100).replace(b"Content-D", b"Content" + b"D" * 9000, 1), HEADER),
    ],
)
def test_what_is_no_form_is_refused(body, header, caplog):
    with caplog.at_level(logging.DEBUG), pytest.raises(RequestError) as caught:
        parse_form(body, header)
    assert caught.value.failure == Failure(
        status=400,
        code="malformed_form",
        message="The request body is not valid multipart/form-data.",
    )
    assert caplog.text == ""


def test_the_number_of_parts_is_bounded():
    part = b'--bnd\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    assert len(parse_form(part * MAX_PARTS + b"--bnd--\r\n", HEADER).parts) == 128
    with pytest.raises(RequestError):
        parse_form(part * (MAX_PARTS + 1) + b"--bnd--\r\n", HEADER)


def test_an_empty_value_is_a_part():
    form = parse_form(b'--bnd\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n--bnd--\r\n', HEADER)
    assert [(part.name, form.value(part)) for part in form.parts] == [("a", b"")]


def test_a_written_form_is_a_form():
    body, content_type = write_form(
        [
            Field(name="model", value=b"whisper"),
            Field(name="file", value=AUDIO, filename="audio.wav", content_type="audio/wav"),
        ]
    )
    assert content_type == "multipart/form-data; boundary=anvil-form"
    assert body == (
        b'--anvil-form\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
        b'--anvil-form\r\nContent-Disposition: form-data; name="file"; filename="audio.wav"\r\n'
        b"Content-Type: audio/wav\r\n\r\n" + AUDIO + b"\r\n--anvil-form--\r\n"
    )


def test_a_boundary_never_stands_in_a_value():
    body, content_type = write_form([Field(name="a", value=b"x anvil-form anvil-form-1")])
    assert content_type == "multipart/form-data; boundary=anvil-form-2"
    assert [part.name for part in parse_form(body, content_type).parts] == ["a"]


NAMES = st.from_regex(r"[a-z_]{1,12}(\[\])?", fullmatch=True).filter(lambda name: name != "model")
VALUES = st.binary(max_size=60) | st.lists(
    st.sampled_from([b"\r\n", b"--", b"--anvil-form", b"\r\n--anvil-form", b"x", b"\x00"]), max_size=8
).map(b"".join)


@given(
    st.lists(st.tuples(NAMES, VALUES), max_size=6),
    st.sampled_from([None, b"old"]),
    st.binary(min_size=1, max_size=20).filter(lambda name: b"\r" not in name and b"\n" not in name),
)
def test_only_the_named_field_changes(fields, model, value):
    """Whatever the other parts hold, they arrive as they were sent."""
    written = [Field(name=name, value=held) for name, held in fields]
    if model is not None:
        written.append(Field(name="model", value=model))
    body, content_type = write_form(written)
    form = parse_form(body, content_type)
    assert [(part.name, form.value(part)) for part in form.parts] == [
        (one.name, one.value) for one in written
    ]

    if form.boundary.encode() in value:
        return
    changed = parse_form(form.with_field("model", value), form.content_type)
    found = [(part.name, changed.value(part)) for part in changed.parts]
    assert [one for one in found if one[0] != "model"] == fields
    assert [one for one in found if one[0] == "model"] == [("model", value)]


@given(st.binary(max_size=200))
def test_values_are_found_as_an_independent_parser_finds_them(audio):
    body, content_type = write_form(
        [Field(name="model", value=b"m"), Field(name="file", value=audio, filename="a.wav")]
    )
    form = parse_form(body, content_type)
    found = [(part.name, form.value(part)) for part in form.parts]
    assert found == read_independently(body, content_type) == [("model", b"m"), ("file", audio)]


@given(st.binary(max_size=120), st.integers(min_value=0), st.integers(min_value=1, max_value=40))
def test_broken_bytes_are_a_form_or_refused(noise, at, length):
    at %= len(FORM)
    broken = FORM[:at] + noise + FORM[at + length :]
    try:
        form = parse_form(broken, HEADER)
    except RequestError:
        return
    for part in form.parts:
        assert 0 <= part.start <= part.end <= len(broken)
