"""Requests put into another wire, for upstreams that do not serve the caller's.

What may be said is what the target's own wire can say: whatever cannot be carried was refused while the
request was read, or is while it is written, with a 400 that names the field. The tier's ``extra_body`` and
output limit speak of the wire that is sent, and are applied to it.
"""

from typing import Final

from msgspec import Raw

from routing.dialects.base import Target, UpstreamCall
from routing.dialects.chat_answers import ChatReader
from routing.dialects.chat_requests import write_chat
from routing.dialects.conversation import Conversation
from routing.dialects.document import encode_json
from routing.dialects.fields import encode, is_unset
from routing.dialects.messages_answers import MessagesReader
from routing.dialects.messages_requests import DEFAULT_MAX_TOKENS, write_messages
from routing.dialects.narration import Reader, Teller, Translated
from routing.dialects.passthrough import settle

CHAT_LIMITS: Final = ("max_tokens", "max_completion_tokens")
MESSAGES_LIMITS: Final = ("max_tokens",)

_TRUE: Final = Raw(b"true")
_WITH_USAGE: Final = Raw(b'{"include_usage":true}')


def translate(conversation: Conversation, target: Target, *, model: str, teller: Teller) -> UpstreamCall:
    """The call that carries ``conversation`` in the wire of the target's dialect, answered to ``teller``.

    Raises `RequestError`.
    """
    reader: Reader
    if target.dialect == "openai":
        fields = _encoded(write_chat(conversation))
        settle(fields, target, model=model, limits=CHAT_LIMITS)
        if teller.stream:
            fields["stream_options"] = _WITH_USAGE
        path, reader = "/chat/completions", ChatReader()
    else:
        fields = _encoded(write_messages(conversation, ceiling=target.max_output_tokens))
        settle(fields, target, model=model, limits=MESSAGES_LIMITS)
        if is_unset(fields, "max_tokens"):
            fields["max_tokens"] = Raw(encode(DEFAULT_MAX_TOKENS))
        path, reader = "/messages", MessagesReader()
    if teller.stream:
        fields["stream"] = _TRUE
    return UpstreamCall(path=path, body=encode(fields), translator=Translated(reader, teller))


def _encoded(fields: dict[str, object]) -> dict[str, Raw]:
    return {name: Raw(encode_json(value)) for name, value in fields.items()}
