"""litellm's client, run by a Python of its own: litellm_calls.py BASE_URL TOKEN MODEL

Prints one JSON object: what each call gave. It talks chat completions and messages, each as its vendor's own.
"""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # It would fetch prices from the network.

import litellm

litellm.suppress_debug_info = True

base, token, model = sys.argv[1:]
png = f"data:image/png;base64,{os.environ['PNG']}"
schema = json.loads(os.environ["SCHEMA"])
tools = [
    {"type": "function", "function": {"name": name, "description": "Tells.", "parameters": schema}}
    for name in ("get_weather", "get_time")
]
prompt = [{"role": "user", "content": "hi"}]


def calls(provider: str, address: str) -> dict[str, object]:
    """Each kind of call through one of its providers."""

    def ask(messages: list[object] = prompt, name: str = model, **fields: object):
        return litellm.completion(
            model=f"{provider}/{name}",
            api_base=address,
            api_key=token,
            messages=messages,
            max_retries=0,
            num_retries=0,
            timeout=10,
            max_tokens=64,
            **fields,
        )

    seen: dict[str, object] = {}
    plain = ask()
    seen["plain"] = [plain.choices[0].message.content, plain.choices[0].finish_reason]
    seen["usage"] = plain.usage.completion_tokens

    chunks = list(ask(stream=True))
    seen["streamed"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    said = [{"role": "user", "content": "Ask get_weather and get_time."}]
    streamed = litellm.stream_chunk_builder(list(ask(said, tools=tools, stream=True)))
    for name, answer in (("round", ask(said, tools=tools)), ("streamed_round", streamed)):
        message = answer.choices[0].message
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": text}
            for call, text in zip(message.tool_calls, ("rain", "noon"), strict=True)
        ]
        last = ask([*said, message.model_dump(exclude_none=True), *results], tools=tools)
        seen[name] = {
            "called": [
                [call.function.name, json.loads(call.function.arguments)] for call in message.tool_calls
            ],
            "text": last.choices[0].message.content,
        }

    wanted = {"type": "json_schema", "json_schema": {"name": "trip", "schema": schema, "strict": True}}
    if provider == "openai":
        seen["structured"] = json.loads(ask(response_format=wanted).choices[0].message.content)

    content = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": png}}]
    seen["image"] = ask([{"role": "user", "content": content}]).usage.prompt_tokens

    try:
        ask(name="nobody")
    except litellm.NotFoundError as error:
        seen["unknown"] = error.status_code

    left = ask(stream=True)
    next(iter(left))
    left.completion_stream.close()
    return seen


openai = calls("openai", f"{base}/v1")
responses = litellm.responses(
    model=f"openai/{model}", api_base=f"{base}/v1", api_key=token, input="hi", timeout=10, num_retries=0
)
openai["responses"] = responses.output[0].content[0].text
print(json.dumps({"openai": openai, "anthropic": calls("anthropic", base)}))
