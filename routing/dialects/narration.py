"""An answer told in the middle between two wires: a reader tells it, a teller writes it down for the caller.

    Reader   one per upstream wire. Takes the upstream's events, or its whole body, and tells what they say.
    Teller   one per caller's wire. Turns what it is told into the caller's events, or a whole body.
    Translated   the `Translator` that joins one of each; what the exchange drives.

A whole answer and a stream are told by the same calls, so that the deltas of a stream always add up to the
body that would have been sent whole. Where a wire speaks in blocks, one after the other, `BlockTeller` puts
what comes interleaved in order: the first block that is open goes out as it comes, and what belongs to a
later one waits until it is complete.
"""

import re
import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, TypeVar

import msgspec

from routing.dialects.base import JSON, Answer, Dialect, Failure, MalformedAnswer, Translator, Usage, Whole
from routing.dialects.document import decode_json, encode_json
from routing.dialects.fields import UNREADABLE

_T = TypeVar("_T")

_KNOWN_PREFIX: Final = re.compile(r"(?:chatcmpl-|cmpl-|msg_|resp_)")
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Stop(Enum):
    """Why the model stopped."""

    END = "end"
    LENGTH = "length"
    TOOLS = "tools"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What was used. ``prompt`` counts all of the prompt, of it ``cached`` read from a cache and ``written``
    to one; ``completion`` counts all that was generated, of it ``reasoning``."""

    prompt: int = 0
    cached: int = 0
    written: int = 0
    completion: int = 0
    reasoning: int = 0


class Teller(ABC):
    """Writes an answer down in the caller's wire. Told in any order but `begin` first and `end` last."""

    def __init__(self, *, dialect: Dialect, alias: str, stream: bool) -> None:
        self.dialect = dialect
        self.alias = alias
        self.stream = stream
        self.tokens = Tokens()
        self.sequence: str | None = None
        """The stop sequence that was met, where the upstream says so."""
        self._stop = Stop.END
        self._called = False
        self._refused = False
        self._begun = False
        self._events: list[bytes] = []

    def begin(self, upstream_id: str | None, created: float | None) -> None:
        """The answer begins; a second call changes nothing. ``created`` is in seconds since the epoch."""
        if not self._begun:
            self._begun = True
            self.started(_base_id(upstream_id), int(created if created is not None else time.time()))

    @abstractmethod
    def started(self, base_id: str, created: int) -> None:
        """`begin`, once: ids are made from ``base_id``."""

    @abstractmethod
    def text(self, text: str) -> None:
        """More of the answer's text."""

    @abstractmethod
    def thought(self, text: str) -> None:
        """More of the reasoning before it."""

    @abstractmethod
    def signature(self, signature: str) -> None:
        """The seal of the reasoning told so far."""

    def refusal(self, text: str) -> None:
        """More of a refusal's text."""
        self._refused = True
        self.text(text)

    def call(self, key: int, call_id: str | None, name: str) -> None:
        """A call of a tool; ``key`` tells its fragments from other calls'."""
        self._called = True
        self.called(key, call_id, name)

    @abstractmethod
    def called(self, key: int, call_id: str | None, name: str) -> None:
        """`call`, counted."""

    @abstractmethod
    def arguments(self, key: int, fragment: str) -> None:
        """More of a call's arguments."""

    def stop(self, stop: Stop, sequence: str | None = None) -> None:
        """Why the answer ends."""
        self._stop = stop
        self.sequence = sequence

    @property
    def ending(self) -> Stop:
        """Why it ended, in agreement with what it holds: engines differ on an answer with calls."""
        if self._stop is Stop.END and self._refused:
            return Stop.REFUSED
        if self._stop in (Stop.END, Stop.TOOLS):
            return Stop.TOOLS if self._called else Stop.END
        return self._stop

    @abstractmethod
    def end(self) -> None:
        """Nothing follows. Raises `MalformedAnswer` when what was told is no answer."""

    @abstractmethod
    def whole(self) -> bytes:
        """The body of a whole answer, after `end`."""

    def take(self) -> bytes:
        """The caller's events since the last call."""
        events = self._events
        self._events = []
        return events[0] if len(events) == 1 else b"".join(events)

    def error_event(self, failure: Failure) -> bytes:
        """What ends a stream that has begun."""
        return self.dialect.error_event(failure)


class Reader(ABC):
    """Tells what an upstream's answer says. One per answer."""

    @abstractmethod
    def event(self, data: bytes, *, named_error: bool, teller: Teller) -> bool:
        """Tell one event; True for the one that ends the stream. Raises `AnswerError`."""

    @abstractmethod
    def whole(self, body: bytes, teller: Teller) -> None:
        """Tell a whole body. Raises `AnswerError`."""


class Halves:
    """Joins characters that came in two halves: some servers cut text between the halves of a surrogate pair
    (see `surrogates`). A half that nothing completes is no text."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def join(self, text: str) -> str:
        """``text`` with the half that was held before it, without one that is at its end."""
        if not text or not (self._held or "\ud800" <= text[-1] <= "\udbff"):
            return text
        text = self._held + text
        self._held = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
        whole = text.removesuffix(self._held)
        return whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


class Translated(Translator):
    """An answer told from one wire in another."""

    __slots__ = ("_reader", "_teller")

    def __init__(self, reader: Reader, teller: Teller) -> None:
        super().__init__(dialect=teller.dialect, answer=Answer.EVENTS if teller.stream else Answer.WHOLE)
        self._reader = reader
        self._teller = teller

    def event(self, data: bytes, prefix: bytes) -> bytes:
        """What one of the upstream's events becomes; one that says nothing keeps the line busy."""
        teller = self._teller
        if self._reader.event(data, named_error=b"event: error\n" in prefix, teller=teller):
            teller.end()
            self.terminal = True
        self._note_usage()
        return teller.take() or b": ping\n\n"

    def whole(self, body: bytes, content_type: str) -> Whole:
        """What the upstream's body becomes."""
        self._reader.whole(body, self._teller)
        self._teller.end()
        self._note_usage()
        return Whole(body=self._teller.whole(), content_type=JSON)

    def error_event(self, failure: Failure) -> bytes:
        """The caller's error event."""
        return self._teller.error_event(failure)

    def _note_usage(self) -> None:
        tokens = self._teller.tokens
        self.usage = Usage(tokens.prompt, tokens.completion)


def _base_id(upstream_id: str | None) -> str:
    """What the caller's ids are made from: the upstream's own id where it is plain."""
    base = _KNOWN_PREFIX.sub("", upstream_id or "", count=1)
    return base if _PLAIN_ID.fullmatch(base) else secrets.token_hex(12)


def read_answer(data: bytes, kind: type[_T]) -> _T:
    """An upstream's event or body as what it should be. Raises `MalformedAnswer`."""
    try:
        if not data.isascii():
            data.decode()
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return msgspec.convert(decode_json(data), kind)
    except UNREADABLE:
        raise MalformedAnswer from None


# Blocks


class JsonText:
    """A JSON text that grows. Tells when its outermost object is closed, and closes one that broke off."""

    _STRUCTURE: Final = re.compile(r'["\\{}\[\],]')

    def __init__(self) -> None:
        self.complete = False
        self._length = 0
        self._open: list[str] = []
        self._in_string = False
        self._escaped_at = -1
        self._sound = 0
        self._sound_closers = ""

    def feed(self, fragment: str) -> None:
        """The next characters."""
        for match in self._STRUCTURE.finditer(fragment):
            at = self._length + match.start()
            mark = match[0]
            if self._in_string:
                if at == self._escaped_at:
                    continue
                if mark == "\\":
                    self._escaped_at = at + 1
                elif mark == '"':
                    self._in_string = False
            elif mark == '"':
                self._in_string = True
            elif mark in "{[":
                self._open.append("}" if mark == "{" else "]")
                self._note_sound(at + 1)
            elif mark == ",":
                self._note_sound(at)
            elif mark in "}]" and self._open:
                self._open.pop()
                self.complete = not self._open
                self._note_sound(at + 1)
        self._length += len(fragment)

    def _note_sound(self, at: int) -> None:
        self._sound = at
        self._sound_closers = "".join(reversed(self._open))

    def closed(self, text: str) -> str:
        """The longest beginning of ``text``, which was fed, that whole values make up, closed."""
        return text[: self._sound] + self._sound_closers


BlockKind = Literal["text", "thought", "refusal", "call"]


@dataclass(slots=True, kw_only=True)
class Block:
    """One block: what it holds so far, and what of that the caller was not told yet."""

    kind: BlockKind
    index: int = -1
    key: int = -1
    call_id: str | None = None
    name: str = ""
    signature: str = ""
    pieces: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    json: JsonText = field(default_factory=JsonText)

    @property
    def content(self) -> str:
        """All of it."""
        return "".join(self.pieces)

    @property
    def may_close(self) -> bool:
        """Whether nothing more of it can come once something else has."""
        return self.kind != "call" or self.json.complete


class BlockTeller(Teller):
    """A teller for wires that tell one block after the other. No block is ever empty.

    A subclass writes the events of a block's `opened`, `grew` and `closed`.
    """

    def __init__(self, *, dialect: Dialect, alias: str, stream: bool) -> None:
        super().__init__(dialect=dialect, alias=alias, stream=stream)
        self.blocks: list[Block] = []
        """Those that were opened, in order."""
        self._queue: deque[Block] = deque()
        self._calls: dict[int, Block] = {}

    @abstractmethod
    def opened(self, block: Block) -> None:
        """The caller is told of a block, the only one that is open."""

    @abstractmethod
    def grew(self, block: Block, piece: str) -> None:
        """The open block goes on; ``piece`` is not empty."""

    @abstractmethod
    def closed(self, block: Block) -> None:
        """The open block is complete. May raise `MalformedAnswer`."""

    def text(self, text: str) -> None:
        self._add("text", text)

    def thought(self, text: str) -> None:
        self._add("thought", text)

    def refusal(self, text: str) -> None:
        if text:
            self._refused = True
            self._add("refusal", text)

    def signature(self, signature: str) -> None:
        for block in reversed(self._queue):
            if block.kind == "thought":
                block.signature += signature
                return

    def called(self, key: int, call_id: str | None, name: str) -> None:
        if key in self._calls:
            raise MalformedAnswer
        block = self._calls[key] = Block(kind="call", key=key, call_id=call_id, name=name)
        self._queue.append(block)
        self._advance()

    def arguments(self, key: int, fragment: str) -> None:
        block = self._calls.get(key)
        if block is None:
            raise MalformedAnswer
        if not any(block is one for one in self._queue):
            # Its object was complete, and the next block has begun.
            if fragment.strip():
                raise MalformedAnswer
            return
        block.json.feed(fragment)
        self._grow(block, fragment)

    def _add(self, kind: BlockKind, text: str) -> None:
        if not text:
            return
        if not self._queue or self._queue[-1].kind != kind:
            self._queue.append(Block(kind=kind))
        self._grow(self._queue[-1], text)

    def _grow(self, block: Block, piece: str) -> None:
        if piece:
            block.pieces.append(piece)
            block.waiting.append(piece)
        self._advance()

    def _advance(self) -> None:
        """Tell what can be told: the first block, and the next ones as soon as it may close."""
        while self._queue:
            block = self._queue[0]
            self._tell(block)
            if len(self._queue) == 1 or not block.may_close:
                return
            self._close()

    def _tell(self, block: Block) -> None:
        if block.index < 0:
            block.index = len(self.blocks)
            self.blocks.append(block)
            self.opened(block)
        for piece in block.waiting:
            self.grew(block, piece)
        block.waiting.clear()

    def _close(self) -> None:
        block = self._queue[0]
        self._tell(block)
        if block.kind == "call" and not block.pieces:
            # Some engines spell "no arguments" as nothing.
            block.pieces.append("{}")
            self.grew(block, "{}")
        self.closed(block)
        self._queue.popleft()

    def end(self) -> None:
        """Close what is open."""
        while self._queue:
            self._close()

    def input_of(self, block: Block) -> dict[str, object]:
        """A call's arguments as an object. One that the output limit broke off is closed where it was sound.

        Raises `MalformedAnswer`.
        """
        text = block.content
        try:
            value = decode_json(text)
        except UNREADABLE:
            if self.ending is not Stop.LENGTH:
                raise MalformedAnswer from None
            try:
                value = decode_json(block.json.closed(text) or "{}")
            except UNREADABLE:
                raise MalformedAnswer from None
        if not isinstance(value, dict):
            raise MalformedAnswer
        return value


def named_event(name: str, payload: object) -> bytes:
    """One event with its name, as both OpenAI's Responses and Anthropic's messages have them."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode_json(payload))
