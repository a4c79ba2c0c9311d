"""What a request says, whichever wire it came by: the middle between reading one and writing another."""

from dataclasses import dataclass, field
from typing import Literal

from routing.dialects.document import Node


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image by URL; one that came as bytes has a ``data:`` URL. ``place`` is its field, for faults."""

    url: str
    place: Node = field(repr=False, compare=False)
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning of an earlier answer, and the seal that its server gave it."""

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool; ``arguments`` is the JSON text that the model wrote."""

    id: str
    name: str
    arguments: str
    place: Node = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool answered."""

    call_id: str
    parts: tuple[Text | Image, ...]
    failed: bool = False


Part = Text | Image | Thought | Call | Result


@dataclass(frozen=True, slots=True)
class Turn:
    """Who speaks, and what: ``system`` holds texts; results of tools stand in turns of the ``user``."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call; ``schema`` is the JSON schema of its arguments."""

    name: str
    description: str | None = None
    schema: object = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether tools may, may not or must be called; ``tool``: the one of that ``name``."""

    mode: Literal["auto", "none", "any", "tool"]
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The answer is JSON: by ``schema``, or any object when that is None. ``place`` is the asking field."""

    schema: object
    name: str | None = None
    strict: bool | None = None
    description: str | None = None
    place: Node = field(repr=False, compare=False)


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
"""How much a model may reason before it answers, least first."""


@dataclass(frozen=True, slots=True)
class Effort:
    """One of `EFFORTS`, and the field that asked for it."""

    level: str
    place: Node = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A whole request. None and empty mean that the caller left it to the server."""

    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    choice: Choice | None = None
    parallel: bool | None = None
    max_output: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    user: str | None = None
    effort: Effort | None = None
    format: Format | None = None


def texts(*pieces: str) -> tuple[Text, ...]:
    """The pieces that say something."""
    return tuple(Text(piece) for piece in pieces if piece)
