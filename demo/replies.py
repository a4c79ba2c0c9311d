"""What the engine says: chat completions as vLLM shapes them, streamed and whole.

The text is a function of the request and the engine's label, so that a test can name it: it says which
engine answered, then counts on in words of which some are not ASCII. Functions that the last user message
names are called, in the order of `tools`; ``tool_choice`` may force one. Arguments and JSON answers are
made from their schema.
"""

import json
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle, islice, zip_longest
from typing import Any

from demo.delivery import Final, Item
from demo.wire import compact_json

FILLER = (" one", " token", " per", " word,", " 你好", " and", " 🙂", " too,", " naïve", " or", " not;")
REASONING = (" The", " question", " is", " 简单", ".")
SAMPLE_TEXT = "Zürich 你好"
KNOWN_BODY_BYTES = 4096
MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20
TOKENS_PER_MESSAGE = 4
TOKENS_PER_MEDIA_PART = 85
ARGUMENT_FRAGMENT = 7
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class RequestError(Exception):
    """A request that the engine refuses, with vLLM's status and error type."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param

    def body(self) -> bytes:
        """The answer's body."""
        kind = "NotFoundError" if self.status == 404 else "BadRequestError"
        return error_body(self.message, kind, self.status, self.param)


def error_body(message: str, kind: str, status: int, param: str | None = None) -> bytes:
    """vLLM's error envelope."""
    return compact_json({"error": {"message": message, "type": kind, "param": param, "code": status}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tool call."""

    id: str
    name: str
    arguments: str

    def fragments(self) -> list[str]:
        """The arguments as they are streamed, piece by piece."""
        text = self.arguments
        return [text[at : at + ARGUMENT_FRAGMENT] for at in range(0, len(text), ARGUMENT_FRAGMENT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What counts of a checked chat request; ``budget`` and ``top_logprobs`` are None when not asked for."""

    stream: bool
    include_usage: bool
    continuous_usage: bool
    prompt_tokens: int
    budget: int | None
    natural_length: int
    choices: int
    stop: tuple[str, ...]
    top_logprobs: int | None
    reasons: bool
    calls: tuple[tuple[str, str], ...]
    tool_results: tuple[str, ...]
    json_text: str | None


def parse_chat(body: bytes, *, model: str, max_model_len: int, tokens: int) -> ChatRequest:
    """Check a request body as vLLM would; ``tokens`` is the length of an answer that nothing limits.

    Raises RequestError: 400 for a malformed request or one over the context, 404 for another model.
    """
    parse = _parse_known_chat if len(body) <= KNOWN_BODY_BYTES else _parse_chat
    return parse(body, model, max_model_len, tokens)


@lru_cache(maxsize=256)
def _parse_known_chat(body: bytes, model: str, max_model_len: int, tokens: int) -> ChatRequest:
    """A load generator repeats its bodies: the engine is not to be what such a run measures."""
    return _parse_chat(body, model, max_model_len, tokens)


def _parse_chat(body: bytes, model: str, max_model_len: int, tokens: int) -> ChatRequest:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError(
            "[{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error'}]"
        ) from None
    if not isinstance(data, dict):
        raise RequestError("[{'type': 'model_attributes_type', 'loc': ('body',)}]")
    return read_chat(data, model, max_model_len, tokens)


def read_chat(data: Mapping[str, Any], model: str, max_model_len: int, tokens: int) -> ChatRequest:
    """Check the fields of a request (see `parse_chat`)."""
    if (asked := _field(data, "model", str, model)) != model:
        raise RequestError(f"The model `{asked}` does not exist.", status=404, param="model")
    messages = _field(data, "messages", list, [])
    if not messages or not all(
        isinstance(one, dict) and isinstance(one.get("role"), str) for one in messages
    ):
        raise RequestError("messages must be a non-empty list of messages", param="messages")
    budget = _field(data, "max_completion_tokens", int, None)
    if budget is None:
        budget = _field(data, "max_tokens", int, None)
    if budget is not None and budget < 1:
        raise RequestError(f"max_tokens must be at least 1, got {budget}.", param="max_tokens")
    choices = _field(data, "n", int, 1)
    if not 1 <= choices <= MAX_CHOICES:
        raise RequestError(f"n must be between 1 and {MAX_CHOICES}, got {choices}.", param="n")
    top_logprobs = _field(data, "top_logprobs", int, 0) if _field(data, "logprobs", bool, False) else None
    if top_logprobs is not None and not 0 <= top_logprobs <= MAX_TOP_LOGPROBS:
        raise RequestError(f"top_logprobs must be at most {MAX_TOP_LOGPROBS}.", param="top_logprobs")

    prompt_tokens = sum(_message_tokens(one) for one in messages)
    _check_context(prompt_tokens, budget, max_model_len)
    stream_options = _field(data, "stream_options", dict, {})
    length = max(tokens, _field(data, "min_tokens", int, 0))
    if _field(data, "ignore_eos", bool, False):
        budget = tokens if budget is None else budget
        length = budget + 1
    return ChatRequest(
        stream=_field(data, "stream", bool, False),
        include_usage=stream_options.get("include_usage") is True,
        continuous_usage=stream_options.get("continuous_usage_stats") is True,
        prompt_tokens=prompt_tokens,
        budget=budget,
        natural_length=length,
        choices=choices,
        stop=_stop_sequences(data.get("stop")),
        top_logprobs=top_logprobs,
        reasons=_wants_reasoning(data),
        calls=_chosen_calls(data, messages),
        tool_results=tuple(_text(one) for one in _trailing_tool_messages(messages)),
        json_text=_json_answer(_field(data, "response_format", dict, {})),
    )


def _field(data: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RequestError(f"[{{'type': '{kind.__name__}_type', 'loc': ('body', '{name}')}}]", param=name)
    return value


def _stop_sequences(value: object) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise RequestError("stop must be a string or a list of strings", param="stop")
    return tuple(stop for stop in stops if stop)


def _check_context(prompt_tokens: int, budget: int | None, limit: int) -> None:
    if prompt_tokens >= limit:
        raise RequestError(
            f"This model's maximum context length is {limit} tokens. However, your request has "
            f"{prompt_tokens} input tokens. Please reduce the length of the input messages."
        )
    if budget is not None and prompt_tokens + budget > limit:
        raise RequestError(
            f"This model's maximum context length is {limit} tokens. However, you requested "
            f"{prompt_tokens + budget} tokens ({prompt_tokens} in the messages, {budget} in the completion). "
            "Please reduce the length of the messages or completion."
        )


def _parts(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def _text(message: Mapping[str, Any]) -> str:
    texts = (part.get("text") for part in _parts(message) if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def _message_tokens(message: Mapping[str, Any]) -> int:
    media = sum(1 for part in _parts(message) if isinstance(part, dict) and part.get("type") != "text")
    size = len(_text(message).encode(errors="replace"))
    return TOKENS_PER_MESSAGE + (size + 3) // 4 + TOKENS_PER_MEDIA_PART * media


def _trailing_tool_messages(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    count = 0
    while count < len(messages) and messages[-1 - count]["role"] == "tool":
        count += 1
    return list(messages[len(messages) - count :])


def _wants_reasoning(data: Mapping[str, Any]) -> bool:
    template = _field(data, "chat_template_kwargs", dict, {})
    return template.get("enable_thinking") is True or data.get("reasoning_effort") not in (None, "none")


def _chosen_calls(
    data: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]
) -> tuple[tuple[str, str], ...]:
    """Name and arguments of the functions to call."""
    tools = [tool.get("function") for tool in _field(data, "tools", list, []) if isinstance(tool, dict)]
    functions = [one for one in tools if isinstance(one, dict) and isinstance(one.get("name"), str)]
    choice = data.get("tool_choice", "auto")
    if not functions or choice == "none" or messages[-1]["role"] == "tool":
        return ()
    if isinstance(choice, dict):
        forced = choice.get("function", {}).get("name")
        chosen = [one for one in functions if one["name"] == forced]
        if not chosen:
            raise RequestError(f"Tool '{forced}' has not been passed in `tools`.", param="tool_choice")
    else:
        prompt = _text(messages[-1])
        chosen = [one for one in functions if one["name"] in prompt]
        if not chosen and choice == "required":
            chosen = functions[:1]
    if data.get("parallel_tool_calls") is False:
        chosen = chosen[:1]
    return tuple((one["name"], _json_from_schema(one.get("parameters"))) for one in chosen)


def _json_answer(response_format: Mapping[str, Any]) -> str | None:
    if response_format.get("type") == "json_object":
        return json.dumps({"answer": SAMPLE_TEXT}, ensure_ascii=False)
    if response_format.get("type") == "json_schema":
        return _json_from_schema(_field(response_format, "json_schema", dict, {}).get("schema"))
    return None


def _json_from_schema(schema: object) -> str:
    root = schema if isinstance(schema, dict) else {"type": "object"}
    return json.dumps(_sample(root, root, depth=0), ensure_ascii=False)


def _sample(schema: Any, root: Mapping[str, Any], *, depth: int) -> Any:
    """A value that satisfies ``schema``, as far as a stand-in cares; null below eight levels."""
    if not isinstance(schema, dict) or depth > 8:
        return None
    if isinstance(ref := schema.get("$ref"), str):
        target: Any = root
        for step in ref.removeprefix("#/").split("/"):
            target = target.get(step) if isinstance(target, dict) else None
        return _sample(target, root, depth=depth + 1)
    if "const" in schema:
        return schema["const"]
    for word in ("enum", "anyOf", "oneOf", "allOf"):
        if isinstance(options := schema.get(word), list) and options:
            return options[0] if word == "enum" else _sample(options[0], root, depth=depth + 1)
    match schema.get("type"):
        case "string":
            return SAMPLE_TEXT
        case "integer":
            return 1
        case "number":
            return 1.5
        case "boolean":
            return True
        case "array":
            return [_sample(schema.get("items"), root, depth=depth + 1)]
        case "null":
            return None
        case _:
            properties = schema.get("properties")
            fields = properties.items() if isinstance(properties, dict) else ()
            return {name: _sample(one, root, depth=depth + 1) for name, one in fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice of an answer, token by token."""

    reasoning: tuple[str, ...]
    text: tuple[str, ...]
    calls: tuple[Call, ...]
    finish_reason: str
    stop_reason: str | None

    @property
    def tokens(self) -> int:
        """Completion tokens: words, and one per piece of a call's arguments."""
        called = sum(1 + len(call.fragments()) for call in self.calls)
        return len(self.reasoning) + len(self.text) + called


def _random_id() -> str:
    return f"{random.getrandbits(128):032x}"


def _tokenise(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


@lru_cache(maxsize=512)
def _spoken(lead: str, length: int) -> tuple[str, ...]:
    """``length`` tokens that begin with ``lead``."""
    words = _tokenise(lead)
    return tuple(words[:length] + list(islice(cycle(FILLER), max(0, length - len(words)))))


def _cut_at_stop(tokens: tuple[str, ...], stops: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
    """The tokens before the earliest stop sequence, and that sequence."""
    text = "".join(tokens)
    found = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        return tokens, None
    room, stop = min(found)
    kept = []
    for token in tokens:
        if room <= 0:
            break
        kept.append(token[:room])
        room -= len(token)
    return tuple(kept), stop


def _compose(request: ChatRequest, label: str, index: int) -> Choice:
    if request.calls:
        calls = tuple(
            Call(id=f"chatcmpl-tool-{_random_id()}", name=name, arguments=arguments)
            for name, arguments in request.calls
        )
        reasoning = REASONING if request.reasons else ()
        return Choice(reasoning=reasoning, text=(), calls=calls, finish_reason="tool_calls", stop_reason=None)
    if request.json_text is not None:
        said = tuple(_tokenise(request.json_text))
    else:
        lead = f"Hello from {label}:" if index == 0 else f"Choice {index} from {label}:"
        if request.tool_results:
            lead += f" the tools said {' and '.join(request.tool_results)};"
        said = _spoken(lead, max(request.natural_length, 1))
    thought: tuple[str, ...] = REASONING if request.reasons else ()
    finish_reason = "stop"
    if request.budget is not None and request.budget < len(thought) + len(said):
        finish_reason = "length"
        thought = thought[: request.budget]
        said = said[: request.budget - len(thought)]
    said, stop_reason = _cut_at_stop(said, request.stop)
    if stop_reason is not None:
        finish_reason = "stop"
    return Choice(
        reasoning=thought, text=said, calls=(), finish_reason=finish_reason, stop_reason=stop_reason
    )


@lru_cache(maxsize=4096)
def _json_string(text: str) -> bytes:
    return compact_json(text)


def _logprobs(tokens: Sequence[str], top: int) -> dict[str, Any]:
    def entry(token: str, rank: int) -> dict[str, Any]:
        return {"token": token, "logprob": -0.25 * (rank + 1), "bytes": list(token.encode())}

    alternatives = ("", " the", " a", " of", " to", *FILLER, " in", " is", " on", " it")
    content = []
    for token in tokens:
        ranked = [token, *(other for other in alternatives if other != token)][:top]
        best = [entry(other, rank) for rank, other in enumerate(ranked)]
        content.append({**entry(token, 0), "top_logprobs": best})
    return {"content": content}


class Answer:
    """One answer, to be streamed (`script`) or sent whole (`body`)."""

    __slots__ = ("_choices", "_label", "_opening", "completion_tokens", "created", "id", "model", "request")

    def __init__(self, request: ChatRequest, *, label: str, model: str, request_id: str | None) -> None:
        safe = request_id is not None and _REQUEST_ID.fullmatch(request_id) is not None
        self.request = request
        self.id = f"chatcmpl-{request_id if safe else _random_id()}"
        self.created = int(time.time())
        self.model = model
        self._label = label
        self._choices = [_compose(request, label, index) for index in range(request.choices)]
        self.completion_tokens = sum(choice.tokens for choice in self._choices)
        self._opening = (
            b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":['
            % (
                compact_json(self.id),
                self.created,
                _json_string(model),
            )
        )

    @property
    def choice(self) -> Choice:
        """The first choice."""
        return self._choices[0]

    @property
    def steps(self) -> int:
        """Decode steps: the tokens of the longest choice."""
        return max(choice.tokens for choice in self._choices)

    def _usage(self, completion_tokens: int) -> dict[str, int]:
        prompt = self.request.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion_tokens,
            "completion_tokens": completion_tokens,
        }

    def body(self) -> bytes:
        """The whole answer as JSON."""
        choices = []
        for index, choice in enumerate(self._choices):
            calls = [
                {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
                for one in choice.calls
            ]
            top = self.request.top_logprobs
            choices.append(
                {
                    "index": index,
                    "message": {
                        "role": "assistant",
                        "content": None if calls else "".join(choice.text),
                        "refusal": None,
                        "annotations": None,
                        "audio": None,
                        "function_call": None,
                        "tool_calls": calls,
                        "reasoning_content": "".join(choice.reasoning) or None,
                    },
                    "logprobs": None if top is None else _logprobs(choice.text, top),
                    "finish_reason": choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                    "token_ids": None,
                }
            )
        return compact_json(
            {
                "id": self.id,
                "object": "chat.completion",
                "created": self.created,
                "model": self.model,
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": None,
                "usage": {**self._usage(self.completion_tokens), "prompt_tokens_details": None},
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "kv_transfer_params": None,
            }
        )

    def script(self) -> Iterator[Item]:
        """The answer as server-sent events, one item per decode step, and the closing events last.

        As vLLM has it: a role chunk before the first token, finish chunks, the usage chunk (empty
        choices) when it was asked for, ``[DONE]``. The role goes out together with the first token.
        """
        spoken = 0
        pending = b"".join(
            self._event(index, b'{"role":"assistant","content":""}', spoken=0)
            for index in range(len(self._choices))
        )
        for step in zip_longest(*(self._deltas(choice) for choice in self._choices)):
            spoken += sum(one is not None for one in step)
            yield pending + b"".join(
                self._event(index, one[0], logprobs=one[1], spoken=spoken)
                for index, one in enumerate(step)
                if one is not None
            )
            pending = b""
        yield Final(pending + self._closing())

    def _deltas(self, choice: Choice) -> Iterator[tuple[bytes, bytes]]:
        """Each decode step's delta and logprobs, as JSON."""
        top = self.request.top_logprobs
        for token in choice.reasoning:
            yield b'{"reasoning_content":%b}' % _json_string(token), b"null"
        for token in choice.text:
            logprobs = b"null" if top is None else compact_json(_logprobs([token], top))
            yield b'{"content":%b}' % _json_string(token), logprobs
        for index, call in enumerate(choice.calls):
            start = {"index": index, "id": call.id, "type": "function"}
            yield _tool_delta({**start, "function": {"name": call.name, "arguments": ""}}), b"null"
            for fragment in call.fragments():
                yield _tool_delta({"index": index, "function": {"arguments": fragment}}), b"null"

    def _event(
        self, index: int, delta: bytes, *, spoken: int, logprobs: bytes = b"null", finish: bytes = b"null"
    ) -> bytes:
        usage = b""
        if self.request.continuous_usage:
            usage = b',"usage":%b' % compact_json(self._usage(spoken))
        return b'%b{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}]%b}\n\n' % (
            self._opening,
            index,
            delta,
            logprobs,
            finish,
            usage,
        )

    def _closing(self) -> bytes:
        events = [
            self._event(
                index,
                b'{"content":""}',
                finish=b'%b,"stop_reason":%b'
                % (compact_json(choice.finish_reason), compact_json(choice.stop_reason)),
                spoken=self.completion_tokens,
            )
            for index, choice in enumerate(self._choices)
        ]
        if self.request.include_usage:
            events.append(
                b'%b],"usage":%b}\n\n' % (self._opening, compact_json(self._usage(self.completion_tokens)))
            )
        events.append(b"data: [DONE]\n\n")
        return b"".join(events)


def _tool_delta(call: Mapping[str, Any]) -> bytes:
    return b'{"tool_calls":[%b]}' % compact_json(call)
