# ruff: noqa: E501, PT017  # literal corpora; and these functions are no tests of pytest's
"""Each parser that reads a stranger's bytes, as one function of bytes: it returns, or its parser has a fault.

Hypothesis drives them in the default run, and a coverage-guided fuzzer by hand (`scripts/fuzz NAME`).
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from admission import strict_json
from admission.intent_document import IntentError, parse_document
from anvil_site.incoming import BadRequest, ChunkedBody, cannot_become_head, parse_head
from routing.config import ConfigError, RouterConfig, Tier, parse_config
from routing.dialects import DIALECTS
from routing.dialects.base import Failure, RequestError, Target
from routing.http1 import ResponseParser
from routing.rendering import config_document, render, topology_document
from routing.snapshot import CODE_TEXTS, SnapshotError, validate_snapshot
from routing.sse import EventFramer, read_block
from routing.topology import Topology, TopologyError, parse_topology
from telemetry.engine_metrics import MAX_COUNT, MetricsStatus, parse_engine_metrics
from tests.unit.fuzz.corpora import kept

MAX_EVENT: Final = 4096
MULTIPART: Final = "multipart/form-data; boundary=b"

_CONFIG: Final = """
[router.model_routes]
"a" = "t"
[[router.tiers]]
id = "t"
base_url = "http://127.0.0.1:1/v1"
context_limit = 1000
model = "m"
tool_support = true
max_output_tokens = 10
extra_body = {top_k = 1}
dialect = "%s"
"""
TIERS: Final[tuple[Tier, ...]] = tuple(
    parse_config((_CONFIG % dialect).encode()).tier("t") for dialect in ("openai", "anthropic")
)


def config(data: bytes) -> None:
    """A configuration is accepted whole and can be written and read again, or every fault has a place."""
    try:
        parsed = parse_config(data)
    except ConfigError as error:
        assert error.faults
        for fault in error.faults:
            assert str(fault) == f"{fault.path}: {fault.message}"
            assert "\n" not in str(fault)
        return
    assert isinstance(parsed, RouterConfig)
    assert parse_config(render(config_document(parsed))) == parsed


def topology(data: bytes) -> None:
    try:
        parsed = parse_topology(data)
    except TopologyError as error:
        assert error.faults
        return
    assert isinstance(parsed, Topology)
    assert parse_topology(render(topology_document(parsed))) == parsed


def snapshot(data: bytes) -> None:
    """Two documents around a zero byte: a snapshot, or one of the fixed codes and texts without a cause."""
    first, _, second = data.partition(b"\x00")
    try:
        made = validate_snapshot(first, second or None)
    except SnapshotError as error:
        assert str(error) == CODE_TEXTS[error.code]
        assert error.__cause__ is error.__context__ is None
        return
    assert made.config_bytes == first


def intent(data: bytes) -> None:
    try:
        document = parse_document(data)
    except IntentError as error:
        assert error.code in ("document_malformed", "document_too_large")
        assert error.__cause__ is None
        return
    assert all(reason for _, _, reason in document.intents)


def order(data: bytes) -> None:
    """Strict JSON: what passes is JSON to everybody, no key twice, no number that is none."""
    try:
        value = strict_json.loads(data)
    except ValueError:
        return
    json.dumps(value, allow_nan=False)


def wires(data: bytes) -> None:
    """Any body on any wire: a request that can be weighed and prepared, or a refusal in the wire's words."""
    for path, dialect in DIALECTS.items():
        content_type = MULTIPART if path.endswith("transcriptions") else "application/json"
        try:
            request = dialect.parse(data, content_type=content_type)
            for tier in TIERS:
                demand = request.demand(count_text=True)
                assert demand.text_bytes <= len(data)
                if path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
                    call = request.prepare(Target.of(tier), model="m")
                    json.loads(call.body)
                    assert b"\r" not in call.path.encode()
                    assert b"\n" not in call.path.encode()
        except RequestError as error:
            failure = error.failure
            assert isinstance(failure, Failure)
            assert 400 <= failure.status < 500
            answer = json.loads(dialect.error(failure))
            assert answer["error"]["message"] == failure.message


def incoming(data: bytes) -> None:
    """A request's head and chunked body: the same whatever way it is cut, or refused."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        cannot_become_head(data)
        return
    try:
        head = parse_head(data[: end + 4])
    except BadRequest as error:
        assert error.status in (400, 417, 431, 501)
        return
    assert not cannot_become_head(data[:end])
    assert head.content_length is None or head.content_length >= 0
    for name, value in head.fields:
        assert name == name.lower()
        assert "\r" not in value
        assert "\n" not in value
        assert "\0" not in value
    whole, pieces = _chunked(data[end + 4 :], 1 << 20), _chunked(data[end + 4 :], 3)
    assert whole == pieces


def _chunked(data: bytes, size: int) -> tuple[str, bytes]:
    body, buffer = ChunkedBody(), bytearray()
    try:
        for at in range(0, len(data), size):
            buffer += data[at : at + size]
            complete = body.take(buffer)
            while body.unfinished:
                complete = body.take(buffer)
            if complete:
                return "complete", bytes(body.body)
    except BadRequest:
        return "refused", b""
    return "open", bytes(body.body)


def upstream(data: bytes) -> None:
    """An engine's answer, cut two ways: the same body, or malformed both times."""
    readings = []
    for size in (1 << 20, 7):
        parser, body = ResponseParser(max_decoded=1 << 16), b""
        for at in range(0, len(data), size):
            body += parser.feed(data[at : at + size])
        parser.feed_eof()
        readings.append((parser.malformed, parser.complete, parser.head, body))
    (one, two) = readings
    assert one[:3] == two[:3]
    if not one[0]:
        assert one[3] == two[3]


def events(data: bytes) -> None:
    """An event stream, cut two ways: the same blocks, none over the bound."""
    readings = []
    for size in (1 << 20, 5):
        framer, blocks = EventFramer(max_event=MAX_EVENT), []
        for at in range(0, len(data), size):
            blocks += framer.feed(data[at : at + size])
        readings.append([_read(block) for block in blocks if block.strip(b"\n")])
        assert all(len(block.strip(b"\n")) <= MAX_EVENT for block in blocks)
    assert readings[0] == readings[1]


def _read(block: bytes) -> object:
    """A block as its reader is told it may come out: bytes that are no UTF-8 are a malformed event."""
    try:
        return read_block(block)
    except UnicodeDecodeError:
        return "not UTF-8"


def metrics(data: bytes) -> None:
    """A page of an engine: counts within bounds, a fraction within 0 and 1, or nothing."""
    reading = parse_engine_metrics(data)
    assert reading.status in MetricsStatus
    counts = (reading.requests_running, reading.requests_waiting, reading.preemptions_total)
    assert all(count is None or (type(count) is int and 0 <= count <= MAX_COUNT) for count in counts)
    fraction = reading.kv_cache_usage_fraction
    assert fraction is None or 0 <= fraction <= 1


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = MappingProxyType(
    {
        target.__name__: target
        for target in (
            config, topology, snapshot, intent, order, wires, incoming, upstream, events, metrics,
        )
    }
)  # fmt: skip

_TESTS: Final = Path(__file__).parents[2]


@cache
def corpus(name: str) -> list[bytes]:
    """What a target is begun with: whole documents, the words that its grammar is made of, and what earlier
    runs have found."""
    return [*_documents(name), *kept(name)]


def _documents(name: str) -> list[bytes]:
    if name in ("config", "topology"):
        return [path.read_bytes() for path in sorted((_TESTS / "corpus" / name).rglob("*.toml"))]
    if name == "snapshot":
        cases = sorted((_TESTS / "corpus" / "snapshots").iterdir())
        files = [[case / f"{part}.toml" for part in ("config", "topology")] for case in cases]
        return [b"\x00".join(path.read_bytes() for path in pair if path.exists()) for pair in files]
    if name == "metrics":
        pages = _TESTS / "unit" / "telemetry" / "pages"
        return [path.read_bytes() for path in sorted(pages.glob("*.txt"))]
    return list(_SEEDS[name])


_CHAT: Final = (
    b'{"model":"a","messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url",'
    b'"image_url":{"url":"data:image/png;base64,AA=="}}]},{"role":"assistant","tool_calls":[{"id":"1","type":'
    b'"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"x"}],'
    b'"stream":true,"max_tokens":5,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]}'
)
_SEEDS: Final[Mapping[str, tuple[bytes, ...]]] = {
    "intent": (
        b'{"version":1,"tiers":{"t":{"state":"quiesced","reason":"x"}},"members":{"t":{"m":"y"}}}',
        b'{"version":1,"tiers":{}}',
    ),
    "order": (b'{"action":"quiesce","tier_id":"t","timeout":1e3,"confirm":true}', b'{"a":NaN}', b'{"a":1,"a":2}', b'{"a":1e999}'),
    "wires": (
        _CHAT,
        b'{"model":"a","max_tokens":5,"system":"s","messages":[{"role":"user","content":"hi"},{"role":"assistant",'
        b'"content":[{"type":"tool_use","id":"1","name":"f","input":{}}]},{"role":"user","content":[{"type":'
        b'"tool_result","tool_use_id":"1","content":"x"}]}]}',
        b'{"model":"a","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":'
        b'"function_call","call_id":"1","name":"f","arguments":"{}"}],"stream":false,"max_output_tokens":9}',
        b'{"model":"a","query":"q","documents":["d"]}',
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--b\r\nContent-Disposition: form-data; '
        b'name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n--b--\r\n',
    ),
    "incoming": (
        b"POST /v1/chat/completions?a=b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue"
        b"\r\n\r\n5;x=y\r\nhello\r\n0\r\nx-trailer: 1\r\n\r\n",
        b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc",
    ),
    "upstream": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: "
        b"chunked\r\n\r\n6;a=b\r\ndata: \r\n3\r\nx\n\n\r\n0\r\nx: y\r\n\r\n",
        b'HTTP/1.1 429 Slow\r\nContent-Type: application/json\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n{}',
        b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end",
    ),
    "events": (
        b'\xef\xbb\xbf: comment\r\nevent: a\rdata: {"x":\ndata: 1}\r\n\r\ndata: [DONE]\n\n',
        b"id: 1\nretry: 5\ndata\n\n\n\ndata: \xf0\x9f\x98\x80\r\r",
    ),
}  # fmt: skip
