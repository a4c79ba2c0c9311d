"""Chat completion requests: read into a conversation, and written from one."""

from collections.abc import Iterator

from routing.dialects.conversation import (
    EFFORTS,
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
from routing.dialects.document import Fields, Node

_TEXT_TYPES = ("text", "input_text", "output_text")


# Reading


def read_chat(request: Fields) -> Conversation:
    """The conversation that a chat request describes. Raises `RequestError` for what has no counterpart.

    Hints that steer caches alone are taken as carried: what they ask for changes no answer.
    """
    request.skip("model", "stream", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options")
    options = request["stream_options"]
    if options.is_set:
        fields = options.fields()
        fields.skip("include_usage")
        fields["include_obfuscation"].must_be(False)
        fields["continuous_usage_stats"].must_be(False)
        fields.finish()
    request["n"].must_be(1)
    request["store"].must_be(False)
    request["metadata"].must_be({})
    request["modalities"].must_be(["text"])
    request["logprobs"].must_be(False)
    request["top_logprobs"].must_be(0)
    request["logit_bias"].must_be({})
    request["frequency_penalty"].must_be(0)
    request["presence_penalty"].must_be(0)
    request["service_tier"].must_be("auto", "default")
    request["verbosity"].must_be("medium")
    request["functions"].must_be([])
    older_limit = request["max_tokens"].integer_or_none()
    limit = request["max_completion_tokens"].integer_or_none()
    conversation = Conversation(
        turns=tuple(turn for node in request["messages"].items() for turn in _read_message(node)),
        tools=tuple(read_function(node) for node in request["tools"].items()),
        choice=_read_choice(request["tool_choice"]),
        parallel=request["parallel_tool_calls"].boolean_or_none(),
        max_output=older_limit if limit is None else limit,
        temperature=request["temperature"].number_or_none(),
        top_p=request["top_p"].number_or_none(),
        top_k=request["top_k"].integer_or_none(),
        stop=_read_stop(request["stop"]),
        user=request["safety_identifier"].string_or_none() or request["user"].string_or_none(),
        effort=read_effort(request["reasoning_effort"]),
        format=_read_format(request["response_format"]),
    )
    request["user"].string_or_none()
    request.finish()
    return conversation


def _read_message(node: Node) -> Iterator[Turn]:
    message = node.fields()
    role = message["role"].string()
    if role in ("system", "developer"):
        yield Turn("system", _only_texts(message["content"]))
    elif role == "user":
        yield Turn("user", read_content(message["content"]))
    elif role == "assistant":
        yield Turn("assistant", tuple(_read_said(message)))
    elif role == "tool":
        result = Result(message["tool_call_id"].string(), read_content(message["content"]))
        yield Turn("user", (result,))
    else:
        raise message["role"].unsupported()
    message["name"].must_be()
    message.finish()


def _read_said(message: Fields) -> Iterator[Part]:
    message.skip("annotations")
    message["audio"].must_be()
    message["function_call"].must_be()
    reasoning = message["reasoning_content"].string_or_none() or message["reasoning"].string_or_none()
    message.skip("reasoning")
    if reasoning:
        yield Thought(reasoning)
    yield from _only_texts(message["content"])
    yield from texts(message["refusal"].string_or_none() or "")
    for node in message["tool_calls"].items():
        call = node.fields()
        call.skip("index")
        call["type"].must_be("function")
        function = call["function"].fields()
        arguments = function["arguments"]
        yield Call(call["id"].string(), function["name"].string(), arguments.string(), arguments)
        function.finish()
        call.finish()


def _only_texts(content: Node) -> tuple[Text, ...]:
    parts = read_content(content)
    for part in parts:
        if isinstance(part, Image):
            raise part.place.unsupported()
    return tuple(part for part in parts if isinstance(part, Text))


def read_content(content: Node) -> tuple[Text | Image, ...]:
    """Content as OpenAI's wires have it: null, a string, or an array of parts."""
    if isinstance(content.value, str) or not content.is_set:
        return texts(content.string_or_none() or "")
    return tuple(part for node in content.items() for part in _read_part(node))


def _read_part(node: Node) -> tuple[Text | Image, ...]:
    part = node.fields()
    kind = part["type"].string()
    read: tuple[Text | Image, ...]
    if kind in _TEXT_TYPES:
        read = texts(part["text"].string())
        part["annotations"].must_be([])
        part["logprobs"].must_be([])
    elif kind == "refusal":
        read = texts(part["refusal"].string())
    elif kind == "image_url":
        image = part["image_url"].fields()
        read = (Image(image["url"].string(), image["url"], _detail(image["detail"])),)
        image.finish()
    elif kind == "input_image":
        read = (Image(part["image_url"].string(), part["image_url"], _detail(part["detail"])),)
    else:
        raise part["type"].unsupported()
    part.skip("prompt_cache_breakpoint")
    part.finish()
    return read


def _detail(node: Node) -> str | None:
    detail = node.string_or_none()
    return None if detail == "auto" else detail


def read_function(node: Node) -> Tool:
    """One entry of ``tools``: a function, described in an object of its own (chat) or in place (responses).

    Raises `RequestError` for tools that a server would have to bring along.
    """
    entry = node.fields()
    if entry["type"].string() != "function":
        raise entry["type"].unsupported()
    function = entry["function"].fields() if entry["function"].is_set else entry
    schema = function["parameters"]
    if schema.is_set:
        schema.fields()
    tool = Tool(
        name=function["name"].string(),
        description=function["description"].string_or_none(),
        schema=schema.value,
        strict=function["strict"].boolean_or_none(),
    )
    function["defer_loading"].must_be(False)
    function["allowed_callers"].must_be(["direct"])
    function.finish()
    entry.finish()
    return tool


def _read_choice(node: Node) -> Choice | None:
    if isinstance(node.value, dict):
        choice = node.fields()
        if choice["type"].string() != "function":
            raise choice["type"].unsupported()
        function = choice["function"].fields()
        named = Choice("tool", function["name"].string())
        function.finish()
        choice.finish()
        return named
    return read_choice_word(node)


def read_choice_word(node: Node) -> Choice | None:
    """A choice of tools by one word."""
    match node.string_or_none():
        case None:
            return None
        case "auto":
            return Choice("auto")
        case "none":
            return Choice("none")
        case "required":
            return Choice("any")
        case _:
            raise node.unsupported()


def _read_stop(node: Node) -> tuple[str, ...]:
    if isinstance(node.value, str):
        return (node.value,)
    return tuple(one.string() for one in node.items())


def read_effort(node: Node) -> Effort | None:
    """A reasoning effort by OpenAI's words."""
    level = node.string_or_none()
    if level is None:
        return None
    if level not in EFFORTS:
        raise node.fault(f"one of {', '.join(EFFORTS)}")
    return Effort(level, node)


def _read_format(node: Node) -> Format | None:
    if not node.is_set:
        return None
    wanted = node.fields()
    described = wanted["json_schema"]
    kind = wanted["type"].string()
    inner = described.fields() if kind == "json_schema" else wanted
    read = read_format(node, kind, inner)
    inner.finish()
    wanted.finish()
    return read


def read_format(node: Node, kind: str, described: Fields) -> Format | None:
    """A format of ``kind``; a schema's particulars stand in ``described``."""
    if kind == "text":
        return None
    if kind == "json_object":
        return Format(schema=None, place=node)
    if kind != "json_schema":
        raise node.unsupported()
    described["schema"].fields()
    return Format(
        schema=described["schema"].value,
        name=described["name"].string(),
        strict=described["strict"].boolean_or_none(),
        description=described["description"].string_or_none(),
        place=node,
    )


# Writing


def write_chat(conversation: Conversation) -> dict[str, object]:
    """The fields of a chat request that says the same, ``model`` and ``stream`` aside."""
    request: dict[str, object] = {"messages": list(_write_turns(conversation.turns))}
    values = {
        "max_tokens": conversation.max_output,
        "temperature": conversation.temperature,
        "top_p": conversation.top_p,
        "top_k": conversation.top_k,
        "stop": list(conversation.stop) or None,
        "user": conversation.user,
        "reasoning_effort": conversation.effort.level if conversation.effort is not None else None,
        "parallel_tool_calls": conversation.parallel,
        "tools": [_write_tool(tool) for tool in conversation.tools] or None,
        "tool_choice": _write_choice(conversation.choice),
        "response_format": _write_format(conversation.format),
    }
    if not conversation.tools:
        # Servers refuse to be told how to use tools that are not there.
        del values["parallel_tool_calls"], values["tool_choice"]
    request.update((name, value) for name, value in values.items() if value is not None)
    return request


def _write_turns(turns: tuple[Turn, ...]) -> Iterator[dict[str, object]]:
    """Messages. Many chat templates take one system message, at the start: leading ones become one."""
    start = 0
    while start < len(turns) and turns[start].role == "system":
        start += 1
    said = [part.text for turn in turns[:start] for part in turn.parts if isinstance(part, Text)]
    if said:
        yield {"role": "system", "content": "\n\n".join(said)}
    for turn in turns[start:]:
        if turn.role == "assistant":
            yield from _write_said(turn.parts)
        elif turn.role == "user":
            yield from _write_heard(turn.parts)
        elif turn.parts:
            yield {"role": "system", "content": _write_content(turn.parts)}


def _write_said(parts: tuple[Part, ...]) -> Iterator[dict[str, object]]:
    spoken = tuple(part for part in parts if isinstance(part, Text))
    thoughts = "".join(part.text for part in parts if isinstance(part, Thought))
    calls = [
        {
            "id": part.id,
            "type": "function",
            "function": {"name": part.name, "arguments": part.arguments or "{}"},
        }
        for part in parts
        if isinstance(part, Call)
    ]
    message: dict[str, object] = {
        "role": "assistant",
        "content": _write_content(spoken) if spoken else None if calls else "",
    }
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = calls
    if spoken or thoughts or calls:
        yield message


def _write_heard(parts: tuple[Part, ...]) -> Iterator[dict[str, object]]:
    """A tool's message holds text alone: images that it returned follow in the user's."""
    heard: list[Part] = []
    shown: list[Part] = []
    for part in parts:
        if isinstance(part, Result):
            if heard:
                yield {"role": "user", "content": _write_content(heard)}
                heard = []
            shown += (one for one in part.parts if isinstance(one, Image))
            answer = [one for one in part.parts if isinstance(one, Text)]
            if part.failed:
                answer = [Text("Error: " + (answer[0].text if answer else "")), *answer[1:]]
            yield {"role": "tool", "tool_call_id": part.call_id, "content": _write_content(answer)}
        else:
            heard.append(part)
    if shown or heard:
        yield {"role": "user", "content": _write_content([*shown, *heard])}


def _write_content(parts: tuple[Part, ...] | list[Part] | list[Text]) -> object:
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    written: list[dict[str, object]] = []
    for part in parts:
        if isinstance(part, Image):
            url = {"url": part.url} if part.detail is None else {"url": part.url, "detail": part.detail}
            written.append({"type": "image_url", "image_url": url})
        elif isinstance(part, Text):
            written.append({"type": "text", "text": part.text})
    return written


def _write_tool(tool: Tool) -> dict[str, object]:
    function: dict[str, object] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.schema is not None:
        function["parameters"] = tool.schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _write_choice(choice: Choice | None) -> object:
    if choice is None:
        return None
    if choice.mode == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.mode == "any" else choice.mode


def _write_format(wanted: Format | None) -> object:
    if wanted is None:
        return None
    if wanted.schema is None:
        return {"type": "json_object"}
    schema: dict[str, object] = {"name": wanted.name or "answer", "schema": wanted.schema}
    if wanted.strict is not None:
        schema["strict"] = wanted.strict
    if wanted.description is not None:
        schema["description"] = wanted.description
    return {"type": "json_schema", "json_schema": schema}
