"""Server-sent events, incrementally: bytes in, complete blocks out. Sans-IO.

A block is what stands between two blank lines: an event, or comments alone. Blocks come out with LF line
ends whatever the sender used (LF, CRLF, CR, mixed), cut at the same places however the bytes were split.
Splitting is done with whole-buffer operations, since a relay sees tens of thousands of events a second.
"""

from typing import Final, NamedTuple

_BOM: Final = b"\xef\xbb\xbf"


class EventFramer:
    """Cuts one stream into blocks of at most ``max_event`` bytes.

    ``oversized`` turns true when a block is longer: the blocks before it were returned, nothing after is.
    """

    __slots__ = ("_after_cr", "_max_event", "_pending", "_start", "oversized")

    def __init__(self, *, max_event: int) -> None:
        self.oversized = False
        self._max_event = max_event
        self._pending = bytearray()
        self._start: bytes | None = b""
        """The first bytes while they may still be a byte order mark; None afterwards."""
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """The blocks that ``data`` completes. Blocks may hold LFs at their ends and may be empty."""
        if self.oversized:
            return []
        if self._start is not None:
            data = self._skip_bom(self._start + data)
        if self._after_cr or b"\r" in data:
            data = self._with_lf(data)
        pending = self._pending
        if not pending and data.endswith(b"\n\n"):
            complete = data[:-2]
        else:
            searched = max(len(pending) - 1, 0)
            pending += data
            end = pending.rfind(b"\n\n", searched)
            if end < 0:
                self._check_pending()
                return []
            complete = bytes(pending[:end])
            del pending[: end + 2]
        blocks = complete.split(b"\n\n")
        if len(complete) > self._max_event:
            for index, block in enumerate(blocks):
                if len(block.strip(b"\n")) > self._max_event:
                    self.oversized = True
                    return blocks[:index]
        if pending:
            self._check_pending()
        return blocks

    def rest(self) -> bytes:
        """What came after the last blank line: a block that lacks its own, or part of one."""
        return bytes(self._pending)

    def _check_pending(self) -> None:
        if len(self._pending) > self._max_event:
            self.oversized = len(self._pending.strip(b"\n")) > self._max_event

    def _skip_bom(self, start: bytes) -> bytes:
        if len(start) < len(_BOM) and _BOM.startswith(start):
            self._start = start
            return b""
        self._start = None
        return start.removeprefix(_BOM)

    def _with_lf(self, data: bytes) -> bytes:
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
        if data:
            self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class Block(NamedTuple):
    """A block taken apart. ``comments`` and ``prefix`` are lines that end in LF: the comments, and the fields
    ``event``, ``id`` and ``retry`` in their order. ``data`` is None when the block has no data line."""

    comments: bytes
    prefix: bytes
    data: bytes | None


def read_block(block: bytes) -> Block:
    """Takes ``block`` apart by the rules of the event stream format: unknown fields are ignored, data lines
    joined by LF. Raises UnicodeDecodeError when it is not UTF-8."""
    block.decode()
    comments: list[bytes] = []
    fields: list[bytes] = []
    data: list[bytes] = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name in (b"event", b"id", b"retry"):
            fields.append(name + b": " + value + b"\n")
        elif line.startswith(b":"):
            comments.append(line + b"\n")
    return Block(b"".join(comments), b"".join(fields), b"\n".join(data) if data else None)
