"""The callers' wires, by the path that speaks each."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from routing.dialects.anthropic_messages import CountTokensDialect, MessagesDialect
from routing.dialects.audio import SpeechDialect, TranscriptionsDialect
from routing.dialects.base import Dialect
from routing.dialects.openai_chat import ChatDialect
from routing.dialects.openai_responses import ResponsesDialect
from routing.dialects.purposes import EmbeddingsDialect, RerankDialect

DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType(
    {
        "/v1/chat/completions": ChatDialect(),
        "/v1/responses": ResponsesDialect(),
        "/v1/messages": MessagesDialect(),
        "/v1/messages/count_tokens": CountTokensDialect(),
        "/v1/embeddings": EmbeddingsDialect(),
        "/v1/rerank": RerankDialect(),
        "/v1/audio/transcriptions": TranscriptionsDialect(),
        "/v1/audio/speech": SpeechDialect(),
    }
)
