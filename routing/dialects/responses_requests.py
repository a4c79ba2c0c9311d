"""Requests of OpenAI's Responses, read into a conversation."""

from collections.abc import Iterator

from routing.dialects.chat_requests import (
    read_choice_word,
    read_content,
    read_effort,
    read_format,
    read_function,
)
from routing.dialects.conversation import (
    Call,
    Choice,
    Conversation,
    Effort,
    Format,
    Image,
    Part,
    Result,
    Thought,
    Turn,
    texts,
)
from routing.dialects.document import Fields, Node

INCLUDABLE = "reasoning.encrypted_content"
"""What ``include`` may name: the seal of a reasoning item, which the answer holds wherever there is one."""

_HINTS = ("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options")


def read_responses(request: Fields) -> Conversation:
    """The conversation that a request describes. Raises `RequestError` for what has no counterpart.

    What asks for a stored response is refused before, by the dialect. ``metadata`` is the caller's own and
    comes back in the answer. ``max_tool_calls`` limits the calls of built-in tools, of which there are none.
    """
    request.skip("model", "stream", "metadata", "max_tool_calls", *_HINTS)
    request["background"].must_be(False)
    request["store"].must_be(False)
    request["truncation"].must_be("disabled")
    request["service_tier"].must_be("auto", "default")
    request["top_logprobs"].must_be(0)
    for node in request["include"].items():
        node.must_be(INCLUDABLE)
    if request["stream_options"].is_set:
        options = request["stream_options"].fields()
        options["include_obfuscation"].must_be(False)
        options.finish()
    instructions = request["instructions"].string_or_none()
    conversation = Conversation(
        turns=(
            *((Turn("system", texts(instructions)),) if instructions else ()),
            *_join(_read_input(request["input"])),
        ),
        tools=tuple(read_function(node) for node in request["tools"].items()),
        choice=_read_choice(request["tool_choice"]),
        parallel=request["parallel_tool_calls"].boolean_or_none(),
        max_output=request["max_output_tokens"].integer_or_none(),
        temperature=request["temperature"].number_or_none(),
        top_p=request["top_p"].number_or_none(),
        user=request["safety_identifier"].string_or_none() or request["user"].string_or_none(),
        effort=_read_reasoning(request["reasoning"]),
        format=_read_text_options(request["text"]),
    )
    request["user"].string_or_none()
    request.finish()
    return conversation


def _read_input(node: Node) -> Iterator[Turn]:
    if isinstance(node.value, str):
        yield Turn("user", texts(node.value))
        return
    for item in node.items():
        fields = item.fields()
        kind = fields["type"].string_or_none() or "message"
        if kind == "message":
            turn = _read_message(fields)
        elif kind == "function_call":
            arguments = fields["arguments"]
            call = Call(fields["call_id"].string(), fields["name"].string(), arguments.string(), arguments)
            turn = Turn("assistant", (call,))
        elif kind == "function_call_output":
            turn = Turn("user", (Result(fields["call_id"].string(), read_content(fields["output"])),))
        elif kind == "reasoning":
            turn = Turn("assistant", tuple(_read_reasoning_item(fields)))
        else:
            raise fields["type"].unsupported()
        if fields["caller"].is_set:
            fields["caller"].fields()["type"].must_be("direct")
        fields["namespace"].must_be()
        fields["async"].must_be(False)
        fields.skip("id", "status", "phase")
        fields.finish()
        yield turn


def _read_message(fields: Fields) -> Turn:
    role = fields["role"].string()
    parts = read_content(fields["content"])
    if role in ("system", "developer"):
        role = "system"
    elif role not in ("user", "assistant"):
        raise fields["role"].unsupported()
    if role != "user":
        for part in parts:
            if isinstance(part, Image):
                raise part.place.unsupported()
    return Turn("user" if role == "user" else "assistant" if role == "assistant" else "system", parts)


def _read_reasoning_item(fields: Fields) -> Iterator[Part]:
    """A reasoning item of an earlier answer: its text, or failing that its summary."""
    said = []
    for name in ("content", "summary"):
        pieces = []
        for node in fields[name].items():
            part = node.fields()
            part["type"].must_be("reasoning_text", "summary_text")
            pieces.append(part["text"].string())
            part.finish()
        said.append("".join(pieces))
    text = said[0] or said[1]
    signature = fields["encrypted_content"].string_or_none()
    if text:
        yield Thought(text, signature)
    elif signature is not None:
        raise fields["encrypted_content"].unsupported()


def _join(turns: Iterator[Turn]) -> list[Turn]:
    """Items that the model wrote in one go become one turn: reasoning, text and calls stand apart here."""
    joined: list[Turn] = []
    for turn in turns:
        if joined and turn.role == "assistant" == joined[-1].role:
            joined[-1] = Turn("assistant", joined[-1].parts + turn.parts)
        else:
            joined.append(turn)
    return joined


def _read_choice(node: Node) -> Choice | None:
    if not isinstance(node.value, dict):
        return read_choice_word(node)
    choice = node.fields()
    if choice["type"].string() != "function":
        raise choice["type"].unsupported()
    named = Choice("tool", choice["name"].string())
    choice.finish()
    return named


def _read_reasoning(node: Node) -> Effort | None:
    """The effort. A summary can't be made here; ``auto`` is content with the reasoning itself."""
    if not node.is_set:
        return None
    fields = node.fields()
    effort = read_effort(fields["effort"])
    fields["summary"].must_be("auto")
    fields["generate_summary"].must_be("auto")
    fields.finish()
    return effort


def _read_text_options(node: Node) -> Format | None:
    if not node.is_set:
        return None
    fields = node.fields()
    fields["verbosity"].must_be("medium")
    wanted = None
    if fields["format"].is_set:
        described = fields["format"].fields()
        wanted = read_format(fields["format"], described["type"].string(), described)
        described.finish()
    fields.finish()
    return wanted
