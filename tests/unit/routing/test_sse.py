"""Server-sent events: framing held against a plain line-by-line reader of the format, in any cut."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routing.sse import Block, EventFramer, read_block
from tests.unit.routing.exchange_kit import PLACES, bytewise, cut

pytestmark = pytest.mark.requirement("contract 2", "cases 22")


def frame(*reads: bytes, max_event: int = 1000) -> tuple[list[bytes], bytes, bool]:
    """Blocks without the line ends around them, what is left, and whether a block was too long."""
    framer = EventFramer(max_event=max_event)
    blocks = [block.strip(b"\n") for data in reads for block in framer.feed(data)]
    return [block for block in blocks if block], framer.rest().strip(b"\n"), framer.oversized


def plain_blocks(stream: bytes) -> tuple[list[bytes], bytes]:
    """The same by the letter of the format: decode lines one by one, blank lines end blocks."""
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    *lines, last = text.split(b"\n")
    blocks: list[bytes] = []
    block: list[bytes] = []
    for line in lines:
        if line:
            block.append(line)
        elif block:
            blocks.append(b"\n".join(block))
            block = []
    return blocks, b"\n".join([*block, last]).strip(b"\n")


@pytest.mark.parametrize("split", [lambda data: [data], bytewise], ids=["one read", "byte by byte"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_every_line_end_makes_the_same_blocks(split, newline):
    stream = "data: 你\n\n: ping\n\n\nevent: e\ndata: 🙂\ndata: b\n\ndata: cut".encode().replace(
        b"\n", newline
    )

    assert frame(*split(stream)) == (
        ["data: 你".encode(), b": ping", "event: e\ndata: 🙂\ndata: b".encode()],
        b"data: cut",
        False,
    )


@given(
    lines=st.lists(
        st.sampled_from([b"data: a", b":", b"id: 1", b"", b"", "data: é🙂".encode()]), max_size=12
    ),
    newlines=st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=12, max_size=12),
    bom=st.booleans(),
    last=st.sampled_from([b"", b"data: [DONE]", b"\xef"]),
    places=PLACES,
)
@example(lines=[b"data: a", b"", b""], newlines=[b"\n"] * 12, bom=False, last=b"", places=[9])
@example(lines=[b"data: a", b""], newlines=[b"\r", b"\n"] + [b"\n"] * 10, bom=True, last=b"", places=[1, 2])
def test_no_cut_makes_a_difference(lines, newlines, bom, last, places):
    stream = b"\xef\xbb\xbf" * bom + b"".join(map(bytes.__add__, lines, newlines)) + last
    blocks, rest = plain_blocks(stream)

    seen, left, oversized = frame(*cut(stream, places))

    assert seen == blocks
    # A lone first byte of a byte order mark may still be held back.
    assert left == rest or (stream == b"\xef" and left == b"")
    assert not oversized


def test_a_block_comes_out_with_the_last_byte_of_its_blank_line():
    framer = EventFramer(max_event=100)

    assert framer.feed(b"data: a\n") == []
    assert framer.feed(b"\ndata: b") == [b"data: a"]
    assert framer.feed(b"\r\n\r") == [b"data: b"]
    assert framer.feed(b"\ndata: c\n\n") == [b"data: c"]


@pytest.mark.parametrize("split", [lambda data: [data], bytewise], ids=["one read", "byte by byte"])
@pytest.mark.parametrize(
    ("stream", "blocks", "oversized"),
    [
        (b"data: 4567\n\ndata: 4567\n\n", [b"data: 4567", b"data: 4567"], False),
        (b"data: 4\n\ndata: 45678\n\ndata: 4\n\n", [b"data: 4"], True),
        (b"data: 4\n\ndata: 45678", [b"data: 4"], True),
        (b"\n\n\n\n\n\n\n\n\n\n\n\ndata: 4567\n", [], False),
        (b"a: 1\nb: 23\n\n", [b"a: 1\nb: 23"], False),
        (b"a: 1\nb: 234\n\n", [], True),
    ],
)
def test_a_block_over_the_bound_is_told_and_those_before_it_come_out(split, stream, blocks, oversized):
    seen, _, too_long = frame(*split(stream), max_event=10)

    assert (seen, too_long) == (blocks, oversized)


@pytest.mark.parametrize(
    ("block", "parts"),
    [
        (b"data: {}", (b"", b"", b"{}")),
        (b"data:{}", (b"", b"", b"{}")),
        (b"data:  {}", (b"", b"", b" {}")),
        (b"data", (b"", b"", b"")),
        (b"data: {\ndata: }", (b"", b"", b"{\n}")),
        (b"event: chunk\nid:7\nretry: 10\ndata: x", (b"", b"event: chunk\nid: 7\nretry: 10\n", b"x")),
        (b": ping\n:pong", (b": ping\n:pong\n", b"", None)),
        (b"retry: 10", (b"", b"retry: 10\n", None)),
        (b"unknown: x\nDATA: y\n data: z", (b"", b"", None)),
        (b": c\ndata: a: b", (b": c\n", b"", b"a: b")),
    ],
)
def test_a_block_is_taken_apart_as_the_format_says(block, parts):
    assert read_block(block) == Block(*parts)


def test_a_block_that_is_not_utf8_is_refused():
    with pytest.raises(UnicodeDecodeError):
        read_block(b": \xff")
