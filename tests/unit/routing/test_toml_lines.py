"""On which line something stands in a document."""

import tomllib
from pathlib import Path

import pytest

from routing.documents import Path as Place
from routing.toml_lines import Lines
from tests import corpus

DOCUMENT = b"""\
# a comment = 1
[server]
auth_env = "X" # [not.a.table]

[router]
text = '''
[[router.tiers]]
id = "not this one"
'''
"quoted \\u0041" = 1
inline = { a = 1, list = [1, 2,
  { b = 3 }, # ] }
  4] }
dotted . key = 2

[[router.tiers]]
id = "one"
params.capacity.limit = 1
[router.tiers.identity]
revision = "r"
[[router.tiers.replicas]]
id = "m"
[[router.tiers.replicas]]
id = "n"
[[router.tiers]]
id = "two"
  [[router.tiers.replicas]]
  id = "o"
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ((), 1),
        (("server",), 2),
        (("server", "auth_env"), 3),
        (("router", "text"), 6),
        (("router", "quoted A"), 10),
        (("router", "inline", "a"), 11),
        (("router", "inline", "list", 1), 11),
        (("router", "inline", "list", 2, "b"), 12),
        (("router", "inline", "list", 3), 13),
        (("router", "dotted", "key"), 14),
        (("router", "tiers"), 16),
        (("router", "tiers", 0, "id"), 17),
        (("router", "tiers", 0, "params", "capacity", "limit"), 18),
        (("router", "tiers", 0, "identity", "revision"), 20),
        (("router", "tiers", 0, "replicas", 1, "id"), 24),
        (("router", "tiers", 1), 25),
        (("router", "tiers", 1, "replicas", 0, "id"), 28),
        # What is missing has the line of what should hold it.
        (("router", "tiers", 1, "context_limit"), 25),
        (("router", "tiers", 0, "identity", "engine"), 19),
        (("nowhere", 3), 1),
    ],
)
def test_the_line_of_a_place(place: Place, line: int) -> None:
    assert Lines(DOCUMENT).of(place) == line
    assert Lines(DOCUMENT.replace(b"\n", b"\r\n")).of(place) == line


def places(value: object, place: Place = ()) -> list[Place]:
    if isinstance(value, dict):
        return [place, *(found for key, it in value.items() for found in places(it, (*place, key)))]
    if isinstance(value, list):
        return [place, *(found for number, it in enumerate(value) for found in places(it, (*place, number)))]
    return [place]


@pytest.mark.parametrize(
    "document",
    corpus.documents("config", "valid") + corpus.documents("config", "invalid"),
    ids=lambda path: path.stem,
)
def test_everything_that_the_parser_finds_has_a_line(document: Path) -> None:
    data = document.read_bytes()
    try:
        parsed = tomllib.loads(data.decode())
    except ValueError:
        pytest.skip("not TOML")
    lines = Lines(data)
    assert [place for place in places(parsed) if place not in lines._found] == []


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"[", b"a", b"a = ", b"a = [", b'a = "', b"[[a]\nb = 1", b"= 1"]
)
def test_what_is_not_toml_ends_in_no_error(data: bytes) -> None:
    assert Lines(data).of(("router", "tiers", 0)) == 1
