"""Which answer meets which fault, and what a cut does to bytes."""

import gzip
import zlib
from typing import Any

import pytest

from demo.delivery import Cut, Delivery, Final, Stall
from demo.faults import KINDS, FaultBoard, FaultError

CHAT = "/v1/chat/completions"


def stream(*payloads: bytes) -> Delivery:
    return Delivery(script=iter([*payloads[:-1], Final(payloads[-1])]), whole=lambda: b"{}", early_head=True)


def strike(name: str, delivery: Delivery, **params: Any) -> Delivery:
    board = FaultBoard()
    board.arm(name, params=params)
    assert board.strike(delivery, path=CHAT, is_work=True)
    return delivery


@pytest.mark.parametrize(
    ("name", "count", "params", "message"),
    [
        ("nonsense", None, None, "unknown fault; one of"),
        (None, None, None, "unknown fault; one of"),
        ("reset", 0, None, "count must be a positive integer or null"),
        ("reset", True, None, "count must be a positive integer or null"),
        ("reset", None, [], "params must be an object"),
        ("reset", None, {"nope": 1}, "reset has no parameter nope"),
        ("refuse", None, {"path": "/health"}, "refuse has no parameter path"),
        ("cut_mid_stream", None, {"after": "3"}, "cut_mid_stream: after is of the wrong type"),
        ("cut_mid_stream", None, {"after": -1}, "cut_mid_stream: after is of the wrong type"),
        ("stall_mid_stream", None, {"seconds": "long"}, "stall_mid_stream: seconds is of the wrong type"),
        ("error_event_mid_stream", None, {"done": 1}, "error_event_mid_stream: done is of the wrong type"),
    ],
)
def test_what_is_no_fault_cannot_be_armed(name: object, count: object, params: object, message: str) -> None:
    board = FaultBoard()
    with pytest.raises(FaultError) as refused:
        board.arm(name, count=count, params=params)
    assert str(refused.value).startswith(message)
    assert board.describe() == []


def test_every_fault_can_be_armed_with_its_defaults_and_described() -> None:
    board = FaultBoard()
    for name in KINDS:
        board.arm(name)
    assert [one["fault"] for one in board.describe()] == list(KINDS)


def test_a_count_is_used_up_by_the_answers_that_fit_oldest_fault_first() -> None:
    board = FaultBoard()
    board.arm("http_500", count=2)
    board.arm("flat_error", count=1)
    statuses = []
    for _ in range(4):
        delivery = Delivery(body=b"{}")
        board.strike(delivery, path=CHAT, is_work=True)
        statuses.append(delivery.status)
    assert statuses == [500, 500, 400, 200]
    assert board.struck == {"http_500": 2, "flat_error": 1}
    assert board.describe() == []


def test_a_fault_for_streams_waits_for_one() -> None:
    board = FaultBoard()
    board.arm("json_400_on_stream", count=1)
    assert not board.strike(Delivery(body=b"{}"), path=CHAT, is_work=True)
    assert board.strike(stream(b"a"), path=CHAT, is_work=True)


def test_faults_keep_to_their_path() -> None:
    board = FaultBoard()
    board.arm("http_500")
    board.arm("reset", params={"path": "/health"})
    assert not board.strike(Delivery(body=b""), path="/metrics", is_work=False)
    health = Delivery(body=b"")
    assert board.strike(health, path="/health", is_work=False)
    assert list(health.items()) == [Cut(reset=True)]


def test_dropping_one_kind_leaves_the_others() -> None:
    board = FaultBoard()
    board.arm("http_500")
    board.arm("flat_error")
    board.drop("http_500")
    assert [one["fault"] for one in board.describe()] == ["flat_error"]
    board.clear()
    assert board.describe() == []


def test_an_accident_comes_after_that_many_payloads_and_never_after_the_last() -> None:
    cut = strike("cut_mid_stream", stream(b"a", b"b", b"c"), after=1)
    assert list(cut.items()) == [b"a", Cut()]
    late = strike("stall_mid_stream", stream(b"a", b"b", b"c"), after=99)
    assert list(late.items()) == [b"a", b"b", Stall(), b"c"]
    assert isinstance(list(strike("stall_mid_stream", stream(b"a", b"b"), after=0).items())[-1], Final)


def test_an_accident_falls_into_the_middle_of_a_whole_body() -> None:
    delivery = strike("cut_mid_stream", Delivery(body=b"0123456789"))
    assert list(delivery.items()) == [b"01234", Cut()]
    assert b"content-length: 10\r\n" in delivery.render_head(closes=False)


def test_characters_are_cut_after_their_first_byte_and_held_across_events() -> None:
    delivery = strike("split_utf8", stream(b""))
    assert delivery.cutter is not None
    assert delivery.cutter([b"abc"], False) == []
    assert delivery.cutter(["d你e".encode()], False) == [b"abcd\xe4"]
    assert delivery.cutter(["f🙂g".encode()], False) == [b"\xbd\xa0ef\xf0"]
    assert delivery.cutter([b"h"], True) == [b"\x9f\x99\x82gh"]


def test_segments_of_a_size_hold_nothing_back() -> None:
    delivery = strike("split_utf8", stream(b""), bytes=2)
    assert delivery.cutter is not None
    assert delivery.cutter([b"abc", b"de"], False) == [b"ab", b"cd", b"e"]


def test_events_are_split_into_http_chunks_of_their_own() -> None:
    delivery = strike("split_events", stream(b""))
    assert delivery.frame(b"data: abcd\n\ndata: ef\n\n") == [
        b"5\r\ndata:\r\n",
        b"6\r\n abcd\n\r\n",
        b"1\r\n\n\r\n",
        b"4\r\ndata\r\n",
        b"5\r\n: ef\n\r\n",
        b"1\r\n\n\r\n",
    ]


def test_crlf_comments_and_several_data_lines() -> None:
    delivery = strike("crlf_and_comments", stream(b'data: {"a":1,"b":2}\n\n', b"data: [DONE]\n\n"))
    first, last = delivery.items()
    assert first == (
        b': keep-alive\r\nevent: message\r\nid: 7\r\nretry: 1000\r\ndata: {"a":1,\r\ndata: "b":2}\r\n\r\n'
    )
    assert last == b": keep-alive\r\nevent: message\r\nid: 7\r\nretry: 1000\r\ndata: [DONE]\r\n\r\n"
    assert isinstance(last, Final)


def test_gzip_is_whole_for_a_body_and_flushed_per_event_for_a_stream() -> None:
    body = strike("gzip_unasked", Delivery(body=b"hello"))
    assert gzip.decompress(body.body or b"") == b"hello"
    assert b"content-encoding: gzip\r\n" in body.render_head(closes=False)

    delivery = strike("gzip_unasked", stream(b""))
    delivery.until_eof = True  # unframed, to see the bytes themselves
    reader = zlib.decompressobj(wbits=31)
    assert reader.decompress(b"".join(delivery.frame(b"one"))) == b"one"
    assert reader.decompress(b"".join(delivery.frame(b"two"))) == b"two"
    assert reader.decompress(delivery.frame_end()) == b""
    assert reader.eof


def test_chunks_may_have_extensions_and_trailers() -> None:
    delivery = strike("chunk_extras", stream(b""))
    assert delivery.frame(b"abc") == [b'3;demo="1"\r\nabc\r\n']
    assert delivery.frame_end() == b"0\r\nx-demo-trailer: 1\r\n\r\n"


def test_metrics_can_lie() -> None:
    page = b"# HELP vllm:a b\nvllm:num_requests_running{} 1.0\nvllm:kv_cache_usage_perc{} 0.5\n"
    board = FaultBoard()
    board.arm("metrics_nan", params={"value": "+Inf"}, count=1)
    nan = Delivery(body=page)
    board.strike(nan, path="/metrics", is_work=False)
    assert nan.body == (
        b"# HELP vllm:a b\nvllm:num_requests_running{} +Inf\nvllm:kv_cache_usage_perc{} +Inf\n"
    )
    board.arm("metrics_missing", count=1)
    missing = Delivery(body=page)
    board.strike(missing, path="/metrics", is_work=False)
    assert missing.body == b"# HELP vllm:a b\nvllm:num_requests_running{} 1.0\n"
