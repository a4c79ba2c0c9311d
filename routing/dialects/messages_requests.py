"""Anthropic's message requests: read into a conversation, and written from one."""

import re
from collections.abc import Callable, Iterator
from typing import Final

from routing.dialects.conversation import (
    Call,
    Choice,
    Conversation,
    Effort,
    Format,
    Image,
    Part,
    Result,
    Text,
    Thought,
    Tool,
    Turn,
    texts,
)
from routing.dialects.document import Fields, Node, decode_json, encode_json
from routing.dialects.fields import UNREADABLE

DEFAULT_MAX_TOKENS: Final = 4096
"""``max_tokens`` must be there. This stands in where neither the caller nor the tier says anything."""

MIN_THINKING_TOKENS: Final = 1024
"""The least budget that the wire allows."""

_BUDGETS: Final = {"minimal": 1024, "low": 1024, "medium": 4096, "high": 16_384, "xhigh": 32_768}
_DATA_URL: Final = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
_UNSAFE_IN_ID: Final = re.compile(r"[^A-Za-z0-9_-]")

_BlockReader = Callable[[Fields, str], Iterator[Part]]
"""Reads a content block of the kind that is given; which kinds there are, the turn decides."""


# Reading


def read_messages(request: Fields) -> Conversation:
    """The conversation that a message request describes. Raises `RequestError` for what has no counterpart.

    ``cache_control`` is taken as carried: it asks a server to keep what it may keep anyway.
    """
    request.skip("model", "stream", "cache_control")
    request["service_tier"].must_be("auto", "standard_only")
    request["speed"].must_be("standard")
    request["mcp_servers"].must_be([])
    user = None
    if request["metadata"].is_set:
        metadata = request["metadata"].fields()
        user = metadata["user_id"].string_or_none()
        metadata.finish()
    choice, parallel = _read_choice(request["tool_choice"])
    system = _read_texts(request["system"])
    effort, wanted = _read_output(request)
    conversation = Conversation(
        turns=(
            *((Turn("system", system),) if system else ()),
            *(_read_message(node) for node in request["messages"].items()),
        ),
        tools=tuple(_read_tool(node) for node in request["tools"].items()),
        choice=choice,
        parallel=parallel,
        max_output=request["max_tokens"].integer_or_none(),
        temperature=request["temperature"].number_or_none(),
        top_p=request["top_p"].number_or_none(),
        top_k=request["top_k"].integer_or_none(),
        stop=tuple(node.string() for node in request["stop_sequences"].items()),
        user=user,
        effort=effort,
        format=wanted,
    )
    request.finish()
    return conversation


def shows_thinking(request: Fields) -> bool:
    """Whether the caller asked to be shown the model's reasoning."""
    if not request["thinking"].is_set:
        return False
    thinking = request["thinking"].fields()
    return thinking["type"].value != "disabled" and thinking["display"].value != "omitted"


def _read_output(request: Fields) -> tuple[Effort | None, Format | None]:
    effort = _read_thinking(request["thinking"])
    wanted = None
    if request["output_config"].is_set:
        config = request["output_config"].fields()
        asked = config["effort"].string_or_none()
        if asked is not None and (effort is None or effort.level != "none"):
            effort = Effort("xhigh" if asked == "max" else asked, config["effort"])
            if asked not in (*_BUDGETS, "max"):
                raise config["effort"].fault("one of low, medium, high, xhigh, max")
        wanted = _read_format(config["format"])
        config.finish()
    if wanted is None:
        wanted = _read_format(request["output_format"])
    return effort, wanted


def _read_thinking(node: Node) -> Effort | None:
    if not node.is_set:
        return None
    thinking = node.fields()
    kind = thinking["type"].string()
    budget = thinking["budget_tokens"].integer_or_none()
    thinking.skip("display")
    thinking.finish()
    if kind == "disabled":
        return Effort("none", node)
    if kind == "adaptive":
        return None
    if kind != "enabled":
        raise thinking["type"].unsupported()
    if budget is None:
        raise thinking["budget_tokens"].fault("an integer")
    level = "low" if budget < _BUDGETS["medium"] else "medium" if budget < _BUDGETS["high"] else "high"
    return Effort(level, node)


def _read_format(node: Node) -> Format | None:
    if not node.is_set:
        return None
    described = node.fields()
    if described["type"].string() != "json_schema":
        raise described["type"].unsupported()
    schema = described["schema"]
    schema.fields()
    described.finish()
    return Format(schema=schema.value, strict=True, place=node)


def _read_message(node: Node) -> Turn:
    message = node.fields()
    role = message["role"].string()
    if role == "system":
        turn = Turn("system", _read_texts(message["content"]))
    elif role == "user":
        turn = Turn("user", _read_content(message["content"], _read_heard))
    elif role == "assistant":
        turn = Turn("assistant", _read_content(message["content"], _read_said))
    else:
        raise message["role"].fault("'user', 'assistant' or 'system'")
    message.finish()
    return turn


def _read_content(content: Node, read_block: _BlockReader) -> tuple[Part, ...]:
    if isinstance(content.value, str):
        return texts(content.value)
    if not content.is_set:
        raise content.fault("a string or an array")
    parts: list[Part] = []
    for node in content.items():
        block = node.fields()
        parts += read_block(block, block["type"].string())
        block.skip("cache_control")
        block.finish()
    return tuple(parts)


def _read_heard(block: Fields, kind: str) -> Iterator[Part]:
    if kind == "tool_result":
        content = block["content"]
        inner = _read_content(content, _read_shown) if content.is_set else ()
        yield Result(
            block["tool_use_id"].string(),
            tuple(part for part in inner if isinstance(part, Text | Image)),
            failed=block["is_error"].boolean_or_none() or False,
        )
    else:
        yield from _read_shown(block, kind)


def _read_shown(block: Fields, kind: str) -> Iterator[Part]:
    if kind == "text":
        yield from _read_text(block)
    elif kind == "image":
        yield _read_image(block["source"])
    else:
        raise block["type"].unsupported()


def _read_said(block: Fields, kind: str) -> Iterator[Part]:
    if kind == "text":
        yield from _read_text(block)
    elif kind == "thinking":
        block.skip("signature")
        if thought := block["thinking"].string():
            yield Thought(thought)
    elif kind == "tool_use":
        place = block["input"]
        place.fields()
        if block["caller"].is_set:
            block["caller"].fields()["type"].must_be("direct")
        arguments = encode_json(place.value).decode()
        yield Call(block["id"].string(), block["name"].string(), arguments, place)
    else:
        raise block["type"].unsupported()


def _read_text(block: Fields) -> tuple[Text, ...]:
    block["citations"].must_be([])
    return texts(block["text"].string())


def _read_texts(content: Node) -> tuple[Text, ...]:
    if not content.is_set:
        return ()
    parts = _read_content(content, _read_shown)
    for part in parts:
        if isinstance(part, Image):
            raise content.unsupported()
    return tuple(part for part in parts if isinstance(part, Text))


def _read_image(node: Node) -> Image:
    source = node.fields()
    kind = source["type"].string()
    if kind == "url":
        image = Image(source["url"].string(), node)
    elif kind == "base64":
        image = Image(f"data:{source['media_type'].string()};base64,{source['data'].string()}", node)
    else:
        raise source["type"].unsupported()
    source.finish()
    return image


def _read_tool(node: Node) -> Tool:
    entry = node.fields()
    if entry["type"].string_or_none() not in (None, "custom"):
        # One that the server would have to bring along.
        raise entry["type"].unsupported()
    entry.skip("cache_control", "eager_input_streaming")
    entry["defer_loading"].must_be(False)
    entry["allowed_callers"].must_be(["direct"])
    entry["input_examples"].must_be([])
    schema = entry["input_schema"]
    schema.fields()
    tool = Tool(
        name=entry["name"].string(),
        description=entry["description"].string_or_none(),
        schema=schema.value,
        strict=entry["strict"].boolean_or_none(),
    )
    entry.finish()
    return tool


def _read_choice(node: Node) -> tuple[Choice | None, bool | None]:
    """The choice of tools, and whether several may be called at once."""
    if not node.is_set:
        return None, None
    fields = node.fields()
    kind = fields["type"].string()
    single = fields["disable_parallel_tool_use"].boolean_or_none()
    if kind == "tool":
        choice = Choice("tool", fields["name"].string())
    elif kind == "any":
        choice = Choice("any")
    elif kind == "auto":
        choice = Choice("auto")
    elif kind == "none":
        choice = Choice("none")
    else:
        raise fields["type"].unsupported()
    fields.finish()
    return choice, None if single is None else not single


# Writing


def write_messages(conversation: Conversation, *, ceiling: int | None) -> dict[str, object]:
    """The fields of a message request that says the same, ``model`` and ``stream`` aside.

    ``ceiling`` is the tier's output limit: a budget for thinking must stay below what is left of
    ``max_tokens``. Raises `RequestError` for what the wire cannot say.
    """
    turns = conversation.turns
    start = 0
    while start < len(turns) and turns[start].role == "system":
        start += 1
    request: dict[str, object] = {"messages": _write_turns(turns[start:])}
    system = [part for turn in turns[:start] for part in turn.parts]
    if system:
        request["system"] = _write_content(system)
    if conversation.max_output is not None:
        request["max_tokens"] = conversation.max_output
    sampling = {
        "temperature": conversation.temperature,
        "top_p": conversation.top_p,
        "top_k": conversation.top_k,
        "stop_sequences": list(conversation.stop) or None,
        "metadata": {"user_id": conversation.user} if conversation.user is not None else None,
        "tools": [_write_tool(tool) for tool in conversation.tools] or None,
        "tool_choice": _write_choice(conversation),
    }
    request.update((name, value) for name, value in sampling.items() if value is not None)
    if conversation.effort is not None:
        _write_effort(request, conversation.effort, conversation.max_output, ceiling)
    if conversation.format is not None:
        request["output_config"] = {"format": _write_format(conversation.format)}
    return request


def _write_effort(request: dict[str, object], effort: Effort, asked: int | None, ceiling: int | None) -> None:
    if effort.level == "none":
        request["thinking"] = {"type": "disabled"}
        return
    budget = _BUDGETS[effort.level]
    limits = [limit for limit in (asked, ceiling) if limit is not None]
    if limits:
        budget = min(budget, min(limits) - 1)
        if budget < MIN_THINKING_TOKENS:
            raise effort.place.unsupported()
    else:
        request["max_tokens"] = budget + DEFAULT_MAX_TOKENS
    request["thinking"] = {"type": "enabled", "budget_tokens": budget}


def _write_turns(turns: tuple[Turn, ...]) -> list[dict[str, object]]:
    """Messages. Neighbours of one role become one: all results of a turn's calls must stand together."""
    merged: list[tuple[str, list[Part]]] = []
    for turn in turns:
        if not turn.parts:
            continue
        if merged and merged[-1][0] == turn.role:
            merged[-1][1].extend(turn.parts)
        else:
            merged.append((turn.role, list(turn.parts)))
    return [{"role": role, "content": _write_content(parts)} for role, parts in merged]


def _write_content(parts: list[Part]) -> object:
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [_write_block(part) for part in parts]


def _write_block(part: Part) -> dict[str, object]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Image():
            return {"type": "image", "source": _write_source(part)}
        case Thought():
            return {"type": "thinking", "thinking": part.text, "signature": part.signature or ""}
        case Call():
            arguments = _arguments(part)
            return {"type": "tool_use", "id": _safe_id(part.id), "name": part.name, "input": arguments}
        case Result():
            block: dict[str, object] = {"type": "tool_result", "tool_use_id": _safe_id(part.call_id)}
            if part.parts:
                block["content"] = _write_content(list(part.parts))
            if part.failed:
                block["is_error"] = True
            return block


def _write_source(image: Image) -> dict[str, object]:
    if image.detail is not None:
        raise Node(image.detail, f"{image.place.path.rpartition('.')[0]}.detail").unsupported()
    if not image.url.startswith("data:"):
        return {"type": "url", "url": image.url}
    data = _DATA_URL.fullmatch(image.url)
    if data is None:
        raise image.place.fault("a URL, or base64 data with its media type")
    return {"type": "base64", "media_type": data[1], "data": data[2]}


def _arguments(call: Call) -> object:
    try:
        arguments = decode_json(call.arguments) if call.arguments.strip() else {}
    except UNREADABLE:
        arguments = None
    if not isinstance(arguments, dict):
        raise call.place.fault("the JSON text of an object")
    return arguments


def _safe_id(call_id: str) -> str:
    """The id in the characters that the wire allows; the same for a call and its result."""
    return _UNSAFE_IN_ID.sub("_", call_id)


def _write_tool(tool: Tool) -> dict[str, object]:
    written: dict[str, object] = {"name": tool.name}
    if tool.description is not None:
        written["description"] = tool.description
    written["input_schema"] = {"type": "object", "properties": {}} if tool.schema is None else tool.schema
    if tool.strict:
        written["strict"] = True
    return written


def _write_choice(conversation: Conversation) -> dict[str, object] | None:
    choice = conversation.choice
    single = conversation.parallel is False
    if not conversation.tools or (choice is None and not single):
        return None
    mode = choice.mode if choice is not None else "auto"
    written: dict[str, object] = {"type": mode}
    if choice is not None and choice.name is not None:
        written["name"] = choice.name
    if single and mode != "none":
        written["disable_parallel_tool_use"] = True
    return written


def _write_format(wanted: Format) -> dict[str, object]:
    if wanted.schema is None:
        # The wire has schemas only; "any object" would be one that allows nothing.
        raise wanted.place.unsupported()
    schema = wanted.schema
    if wanted.description is not None and isinstance(schema, dict) and "description" not in schema:
        schema = {**schema, "description": wanted.description}
    return {"type": "json_schema", "schema": schema}
