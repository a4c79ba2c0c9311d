"""Embeddings and rerank: JSON that goes on as it came, in both directions, but for the model's name.

    POST /v1/embeddings   ``{"model", "input", ...}``
    POST /v1/rerank       ``{"model", "query", "documents", ...}`` (the form of Jina, Cohere and vLLM)

Which form an input, a query or a document has is the engine's to judge; that there is one is checked here. A
caller gets the model back under the name that it used.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec
from msgspec import Raw

from routing.dialects.base import (
    JSON,
    Answer,
    CallerRequest,
    MalformedAnswer,
    Target,
    Translator,
    UpstreamCall,
    Usage,
    Whole,
)
from routing.dialects.fields import (
    ARRAY,
    STRING,
    UNREADABLE,
    bad_field,
    encode,
    is_unset,
    join,
    raise_if_error,
    read,
    read_object,
    split,
    token_count,
)
from routing.dialects.openai_chat import CHAT, OpenAIDialect
from routing.gates import Demand

OPENAI: Final = Target(dialect="openai")
"""What every purpose model and audio route speaks."""


class PurposeRequest(CallerRequest):
    """A request without alias, gates or output limit; ``alias`` is the model or route that it names, ``""``
    when it names none."""

    __slots__ = ()

    def demand(self, *, count_text: bool) -> Demand:
        """Nothing that a gate would weigh."""
        return Demand()

    @abstractmethod
    def prepare(self, target: Target, *, model: str) -> UpstreamCall:
        """The request under the served name ``model``, for an upstream that speaks the same wire."""


class EmbeddingsDialect(OpenAIDialect):
    """The wire of ``POST /v1/embeddings``."""

    __slots__ = ()

    wire = "embeddings"

    def parse(self, body: bytes, *, content_type: str = JSON) -> "EmbeddingsRequest":
        """The request in ``body``, whatever its media type says. Raises `RequestError` with status 400."""
        return EmbeddingsRequest(body)


class RerankDialect(OpenAIDialect):
    """The wire of ``POST /v1/rerank``."""

    __slots__ = ()

    wire = "rerank"

    def parse(self, body: bytes, *, content_type: str = JSON) -> "RerankRequest":
        """The request in ``body``, whatever its media type says. Raises `RequestError` with status 400."""
        return RerankRequest(body)


class _JsonRequest(PurposeRequest):
    """A JSON object with a model."""

    __slots__ = ("_fields", "_mark")

    path: ClassVar[str]

    def __init__(self, body: bytes) -> None:
        self.body_bytes = len(body)
        self.stream = False
        self.requested_output = None
        self._fields, self._mark = read_object(body)
        self.alias = read_name(self._fields)
        if not self.alias:
            raise bad_field("model", "a non-empty string")

    def prepare(self, target: Target, *, model: str) -> UpstreamCall:
        """Everything as it came, but for the model."""
        return UpstreamCall(
            path=self.path,
            body=join({**self._fields, "model": Raw(encode(model))}, self._mark),
            translator=PurposePassThrough(named=self.alias),
        )


class EmbeddingsRequest(_JsonRequest):
    """An embeddings request: a model and an input."""

    __slots__ = ()

    wire = "embeddings"
    path = "/embeddings"

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        if is_unset(self._fields, "input"):
            raise bad_field("input", "a string or an array")


class RerankRequest(_JsonRequest):
    """A rerank request: a model, a query, and at least one document."""

    __slots__ = ()

    wire = "rerank"
    path = "/rerank"

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        if is_unset(self._fields, "query"):
            raise bad_field("query", "a string or an object")
        if not read(self._fields, "documents", ARRAY, "a non-empty array"):
            raise bad_field("documents", "a non-empty array")


class PurposePassThrough(Translator):
    """A whole JSON answer, with the model under the name that the caller ``named``."""

    __slots__ = ("_model",)

    def __init__(self, *, named: str) -> None:
        super().__init__(dialect=CHAT, answer=Answer.WHOLE)
        self._model = Raw(encode(named))

    def whole(self, body: bytes, content_type: str) -> Whole:
        """The answer, renamed."""
        try:
            document, mark = split(body)
        except UNREADABLE:
            raise MalformedAnswer from None
        raise_if_error(document, body, named=False)
        self.usage = usage_in(document)
        if "model" in document:
            document["model"] = self._model
        return Whole(body=join(document, mark))


def read_name(fields: Mapping[str, Raw]) -> str:
    """The model that a request names, trimmed; ``""`` for none. Raises `RequestError` for no string."""
    return (read(fields, "model", STRING, "a non-empty string") or "").strip()


class _Tokens(msgspec.Struct):
    prompt_tokens: object = None
    input_tokens: object = None
    completion_tokens: object = None
    output_tokens: object = None
    total_tokens: object = None


_tokens = msgspec.json.Decoder(_Tokens)


def usage_in(document: Mapping[str, Raw]) -> Usage:
    """The tokens that an answer's ``usage`` counts, under either pair of names; where only a total is given,
    it is the prompt's."""
    try:
        tokens = _tokens.decode(document["usage"])
    except (KeyError, *UNREADABLE):
        return Usage()
    completion = token_count(tokens.completion_tokens) or token_count(tokens.output_tokens)
    prompt = token_count(tokens.prompt_tokens) or token_count(tokens.input_tokens)
    return Usage(prompt or max(0, token_count(tokens.total_tokens) - completion), completion)
