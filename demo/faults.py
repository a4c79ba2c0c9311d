"""The faults that can be switched on, and which answer meets which of them.

A fault edits the `Delivery` of an answer before it starts. It is armed by name with a count (None: until
cleared) and parameters; the answers it fits use it up in order of arrival, the earliest armed fault first.
``path`` is a parameter of every fault but `refuse`, and moves it to another endpoint: ``reset`` on
``/health`` is a probe that is reset.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from demo.delivery import Cut, Delivery, Final, Item, Stall
from demo.replies import error_body
from demo.wire import compact_json

WORK = "work"
"""The path of a fault that any generation request meets."""

REFUSE = "refuse"
"""The one fault that is the listener's: no connection is accepted. It needs ``seconds`` or a control port."""


class FaultError(ValueError):
    """A fault that does not exist, or parameters that it does not have."""


Edit = Callable[[Delivery, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One kind of fault: where it applies, its parameters with their defaults, and what it does."""

    edit: Edit
    path: str = WORK
    params: Mapping[str, Any] = field(default_factory=dict)
    streams_only: bool = False


@dataclass(slots=True, kw_only=True)
class Fault:
    """An armed fault; ``remaining`` is None until it is cleared."""

    name: str
    path: str
    params: Mapping[str, Any]
    remaining: int | None


class FaultBoard:
    """The faults that are armed, oldest first, and how often each has struck."""

    def __init__(self) -> None:
        self._armed: list[Fault] = []
        self.struck: dict[str, int] = {}

    def arm(self, name: object, *, count: object = None, params: object = None) -> Fault:
        """Switch a fault on. Raises FaultError for an unknown name, count or parameter."""
        kind = KINDS.get(name) if isinstance(name, str) else None
        if kind is None or not isinstance(name, str):
            raise FaultError(f"unknown fault; one of {', '.join(sorted(KINDS))}")
        if count is not None and (type(count) is not int or count < 1):
            raise FaultError("count must be a positive integer or null")
        given = {} if params is None else params
        if not isinstance(given, dict):
            raise FaultError("params must be an object")
        known = {**kind.params, "path": kind.path}
        for key, value in given.items():
            if key not in known or (name == REFUSE and key == "path"):
                raise FaultError(f"{name} has no parameter {key}")
            if not _fits(key, value, known[key]):
                raise FaultError(f"{name}: {key} is of the wrong type")
        merged = {**known, **given}
        fault = Fault(name=name, path=merged["path"], params=merged, remaining=count)
        self._armed.append(fault)
        return fault

    def clear(self) -> None:
        """Switch every fault off."""
        self._armed.clear()

    def drop(self, name: str) -> None:
        """Switch one kind of fault off."""
        self._armed = [fault for fault in self._armed if fault.name != name]

    def strike(self, delivery: Delivery, *, path: str, is_work: bool) -> bool:
        """Let the first fault that fits edit ``delivery``; whether one did."""
        for fault in self._armed:
            kind = KINDS[fault.name]
            fits = is_work if fault.path == WORK else fault.path == path
            if not fits or fault.name == REFUSE or (kind.streams_only and not delivery.streams):
                continue
            if fault.remaining is not None:
                fault.remaining -= 1
                if fault.remaining == 0:
                    self._armed.remove(fault)
            self.struck[fault.name] = self.struck.get(fault.name, 0) + 1
            kind.edit(delivery, fault.params)
            return True
        return False

    def describe(self) -> list[dict[str, Any]]:
        """What is armed, as JSON-ready values."""
        return [
            {"fault": one.name, "count": one.remaining, "params": dict(one.params)} for one in self._armed
        ]


def _fits(key: str, value: object, default: object) -> bool:
    """Whether a parameter has the type of its default; durations may be null where the default is."""
    if default is None and (value is None or key != "seconds"):
        return True
    if isinstance(default, bool):
        return isinstance(value, bool)
    if default is None or isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    if isinstance(default, int):
        return type(value) is int and value >= 0
    return isinstance(value, type(default))


# What faults do. Each takes the delivery and the merged parameters.


def _http_error(delivery: Delivery, params: Mapping[str, Any]) -> None:
    body = params["body"]
    if body is None:
        write = delivery.errors.body if delivery.errors is not None else error_body
        body = write(params["message"], params["type"], params["status"])
    else:
        body = body.encode() if isinstance(body, str) else compact_json(body)
    headers = {"content-type": params["content_type"], **params["headers"]}
    delivery.answer_whole(body, status=params["status"], headers=list(headers.items()))


def _flat_error(delivery: Delivery, params: Mapping[str, Any]) -> None:
    status = params["status"]
    body = {"object": "error", "message": params["message"], "type": "BadRequestError", "param": None}
    delivery.answer_whole(compact_json({**body, "code": status}), status=status)


def _whole_on_stream(delivery: Delivery, params: Mapping[str, Any]) -> None:
    if delivery.whole is not None:
        delivery.answer_whole(delivery.whole())


def _reset(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.script = iter([Cut(reset=True)])
    delivery.immediate, delivery.early_head = True, False


def _stall_before_headers(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.early_head = False
    delivery.script = _after(Stall(params["seconds"]), delivery.items())


def _stall_after_headers(delivery: Delivery, params: Mapping[str, Any]) -> None:
    # An empty payload sends the head alone.
    delivery.script = _after(b"", _after(Stall(params["seconds"]), delivery.items()))


def _after(first: Item, rest: Iterator[Item]) -> Iterator[Item]:
    yield first
    yield from rest


def _interrupt(delivery: Delivery, params: Mapping[str, Any], *accidents: Item, go_on: bool = False) -> None:
    """Put accidents after that many payloads, at the latest before the last; half way into a whole body."""
    halve = delivery.body is not None
    delivery.script = _interrupted(delivery.items(), params["after"], accidents, halve=halve, go_on=go_on)


def _interrupted(
    script: Iterator[Item], after: int, accidents: Sequence[Item], *, halve: bool, go_on: bool
) -> Iterator[Item]:
    for sent, item in enumerate(script):
        if isinstance(item, bytes) and (sent == after or isinstance(item, Final)):
            if halve:
                middle = len(item) // 2
                yield bytes(item[:middle])
                item = Final(item[middle:])
            yield from accidents
            if go_on:
                yield item
                yield from script
            return
        yield item


def _stall_mid_stream(delivery: Delivery, params: Mapping[str, Any]) -> None:
    _interrupt(delivery, params, Stall(params["seconds"]), go_on=True)


def _cut_mid_stream(delivery: Delivery, params: Mapping[str, Any]) -> None:
    _interrupt(delivery, params, Cut())


def _reset_mid_stream(delivery: Delivery, params: Mapping[str, Any]) -> None:
    _interrupt(delivery, params, Cut(reset=True))


def _malformed_event(delivery: Delivery, params: Mapping[str, Any]) -> None:
    _interrupt(delivery, params, params["data"].encode(), go_on=True)


def _error_event_mid_stream(delivery: Delivery, params: Mapping[str, Any]) -> None:
    if delivery.errors is not None:
        events = delivery.errors.events(params["message"])
    else:
        error = error_body(params["message"], "InternalServerError", 500)
        events = b"data: %b\n\n%b" % (error, b"data: [DONE]\n\n" if params["done"] else b"")
    _interrupt(delivery, params, Final(events))


def _each(script: Iterator[Item], change: Callable[[bytes], bytes]) -> Iterator[Item]:
    """``script`` with each payload changed; the last one stays the last."""
    for item in script:
        if isinstance(item, Final):
            yield Final(change(item))
        elif isinstance(item, bytes):
            yield change(item)
        else:
            yield item


def _no_terminal_event(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.script = _ending(delivery.items(), _without_last_event)


def _no_final_blank_line(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.script = _ending(delivery.items(), lambda payload: payload.rstrip(b"\n"))


def _ending(script: Iterator[Item], change: Callable[[bytes], bytes]) -> Iterator[Item]:
    """``script`` with its last payload changed."""
    for item in script:
        yield Final(change(item)) if isinstance(item, Final) else item


def _without_last_event(payload: bytes) -> bytes:
    before, blank, _ = payload.removesuffix(b"\n\n").rpartition(b"\n\n")
    return before + blank


def _crlf_and_comments(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.script = _each(delivery.items(), _with_crlf_and_comments)


def _with_crlf_and_comments(payload: bytes) -> bytes:
    """CRLF line ends, a comment before each event, fields of no interest, and JSON over two data lines."""
    out = []
    for event in payload.split(b"\n\n")[:-1]:
        name, _, data = event.rpartition(b"\n")
        head, comma, tail = data.partition(b",")
        lines = [head + comma, b"data: " + tail] if comma else [head]
        fields = [b": keep-alive", name or b"event: message", b"id: 7", b"retry: 1000"]
        out.append(b"\r\n".join([*fields, *lines, b"", b""]))
    return b"".join(out)


def _split_events(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.parts = _halved_events
    delivery.cutter = lambda frames, last: frames
    delivery.gap = params["gap"]


def _halved_events(payload: bytes) -> list[bytes]:
    """Each event in three parts: cut in its middle, and between the two line ends that close it."""
    parts = []
    for event in payload.split(b"\n\n")[:-1]:
        middle = len(event) // 2
        parts += [event[:middle], event[middle:] + b"\n", b"\n"]
    return parts


def _split_utf8(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.gap = params["gap"]
    size = params["bytes"]
    delivery.cutter = _CharacterCutter() if size == 0 else lambda frames, last: _cut_by_size(frames, size)


def _cut_by_size(frames: list[bytes], size: int) -> list[bytes]:
    data = b"".join(frames)
    return [data[at : at + size] for at in range(0, len(data), size)]


class _CharacterCutter:
    """Cuts after the first byte of every multi-byte character, and nowhere else: a segment holds the rest
    of one character and all that follows up to the middle of the next, across events and HTTP chunks."""

    def __init__(self) -> None:
        self._held = b""

    def __call__(self, frames: list[bytes], last: bool) -> list[bytes]:
        data = self._held + b"".join(frames)
        cuts = [match.end() for match in re.finditer(rb"[\xc0-\xff]", data)]
        pieces = [data[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]
        rest = data[cuts[-1] :] if cuts else data
        self._held = b"" if last else rest
        return [*pieces, rest] if last else pieces


def _gzip_unasked(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.compress()


def _close_idle(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.close_silently = True


def _eof_delimited(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.until_eof = True


def _extra_1xx(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.interim = (
        b"HTTP/1.1 100 Continue\r\n\r\n"
        b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\ncontent-length: 5\r\n\r\n"
    )


def _chunk_extras(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.chunk_extras = True


def _extra_headers(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.headers = [*delivery.headers, *params["headers"].items()]


def _wrong_model(delivery: Delivery, params: Mapping[str, Any]) -> None:
    listing = {"object": "list", "data": [{"id": params["model"], "object": "model", "owned_by": "vllm"}]}
    delivery.answer_whole(compact_json(listing))


def _models_malformed(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.answer_whole(b'{"object":"list","data":[{"id":')


def _models_oversized(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.answer_whole((delivery.body or b"") + b" " * params["bytes"])


def _metrics_text(delivery: Delivery, params: Mapping[str, Any]) -> None:
    delivery.body = params["text"].encode()


def _metrics_nan(delivery: Delivery, params: Mapping[str, Any]) -> None:
    value = params["value"].encode()
    gauges = rb"(?m)^(vllm:(?:num_requests_\w+|kv_cache_usage_perc)\S*) .*$"
    delivery.body = re.sub(gauges, lambda match: match[1] + b" " + value, delivery.body or b"")


def _metrics_missing(delivery: Delivery, params: Mapping[str, Any]) -> None:
    series = re.escape(params["series"].encode())
    delivery.body = re.sub(rb"(?m)^(# (HELP|TYPE) )?%b[ {].*\n" % series, b"", delivery.body or b"")


_HTTP_ERROR = {
    "status": 500,
    "message": "Internal server error",
    "type": "InternalServerError",
    "body": None,
    "content_type": "application/json",
    "headers": {},
}
_FOR_EVER = {"seconds": None}

KINDS: Mapping[str, FaultKind] = {
    # Before an answer.
    REFUSE: FaultKind(
        edit=lambda delivery, params: None, path="listener", params={"seconds": None, "cut": False}
    ),
    "reset": FaultKind(edit=_reset),
    "stall_before_headers": FaultKind(edit=_stall_before_headers, params=_FOR_EVER),
    # Another answer.
    "http_500": FaultKind(edit=_http_error, params=_HTTP_ERROR),
    "http_error": FaultKind(edit=_http_error, params=_HTTP_ERROR),
    "http_429": FaultKind(
        edit=_http_error,
        params={
            **_HTTP_ERROR,
            "status": 429,
            "message": "Too many requests",
            "type": "RateLimitError",
            "headers": {"retry-after": "7"},
        },
    ),
    "plain_error": FaultKind(
        edit=_http_error,
        params={**_HTTP_ERROR, "body": "Internal Server Error", "content_type": "text/plain; charset=utf-8"},
    ),
    "flat_error": FaultKind(edit=_flat_error, params={"status": 400, "message": "The engine says no."}),
    "json_400_on_stream": FaultKind(
        edit=_http_error,
        params={**_HTTP_ERROR, "status": 400, "message": "The engine says no.", "type": "BadRequestError"},
        streams_only=True,
    ),
    "json_200_on_stream": FaultKind(edit=_whole_on_stream, streams_only=True),
    # Accidents on the way.
    "stall_after_headers": FaultKind(edit=_stall_after_headers, params=_FOR_EVER),
    "stall_mid_stream": FaultKind(edit=_stall_mid_stream, params={"after": 2, "seconds": None}),
    "cut_mid_stream": FaultKind(edit=_cut_mid_stream, params={"after": 2}),
    "reset_mid_stream": FaultKind(edit=_reset_mid_stream, params={"after": 2}),
    # Events.
    "malformed_event": FaultKind(
        edit=_malformed_event,
        params={"after": 2, "data": 'data: {"id":"chatcmpl-broken","choices":[\n\n'},
        streams_only=True,
    ),
    "error_event_mid_stream": FaultKind(
        edit=_error_event_mid_stream,
        params={"after": 2, "message": "EngineCore encountered an issue.", "done": True},
        streams_only=True,
    ),
    "no_terminal_event": FaultKind(edit=_no_terminal_event, streams_only=True),
    "no_final_blank_line": FaultKind(edit=_no_final_blank_line, streams_only=True),
    "crlf_and_comments": FaultKind(edit=_crlf_and_comments, streams_only=True),
    # The same bytes, harder to read.
    "split_events": FaultKind(edit=_split_events, params={"gap": 0.001}, streams_only=True),
    "split_utf8": FaultKind(edit=_split_utf8, params={"bytes": 0, "gap": 0.001}),
    "gzip_unasked": FaultKind(edit=_gzip_unasked),
    "eof_delimited": FaultKind(edit=_eof_delimited),
    "chunk_extras": FaultKind(edit=_chunk_extras, streams_only=True),
    "extra_1xx": FaultKind(edit=_extra_1xx),
    "extra_headers": FaultKind(edit=_extra_headers, params={"headers": {"set-cookie": "demo=1"}}),
    "close_idle": FaultKind(edit=_close_idle),
    # Health, identity, metrics.
    "slow_health": FaultKind(edit=_stall_before_headers, path="/health", params={"seconds": 10.0}),
    "health_500": FaultKind(edit=_http_error, path="/health", params=_HTTP_ERROR),
    "wrong_model": FaultKind(edit=_wrong_model, path="/v1/models", params={"model": "another-model"}),
    "models_malformed": FaultKind(edit=_models_malformed, path="/v1/models"),
    "models_oversized": FaultKind(edit=_models_oversized, path="/v1/models", params={"bytes": 2_097_152}),
    "metrics_500": FaultKind(edit=_http_error, path="/metrics", params=_HTTP_ERROR),
    "metrics_nan": FaultKind(edit=_metrics_nan, path="/metrics", params={"value": "NaN"}),
    "metrics_missing": FaultKind(
        edit=_metrics_missing, path="/metrics", params={"series": "vllm:kv_cache_usage_perc"}
    ),
    "metrics_text": FaultKind(edit=_metrics_text, path="/metrics", params={"text": ""}),
    "trickling_metrics": FaultKind(edit=_split_utf8, path="/metrics", params={"bytes": 1, "gap": 0.1}),
}
"""Every fault, by name."""
