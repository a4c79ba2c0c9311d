"""What the engine says on the wires that are not chat: embeddings, rerank, transcriptions and speech.

Shapes are vLLM's for the first two and OpenAI's for audio. Everything is a function of the request and the
engine's label, so that a test can name it: a vector comes from the text's digest, a relevance from the words
that query and document share, a transcript tells the length and digest of the audio it heard, and what is
spoken is bytes made from the text (playable where the format is ``wav`` or ``pcm``).
"""

import base64
import email
import email.policy
import hashlib
import itertools
import json
import math
import struct
import time
import wave
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

from demo.delivery import STREAM_HEADERS, Delivery, Final, Item, Work
from demo.replies import FILLER, RequestError
from demo.wire import compact_json

DIMENSIONS = 8
SAMPLE_RATE = 24_000
SAMPLES_PER_WORD = 1200
SECONDS_PER_BYTE = 1 / 32_000
"""Sixteen-bit audio at 16 kHz, as far as durations are asked for."""

SPOKEN_TYPES: Mapping[str, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/opus",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


def embeddings(body: bytes, *, model: str) -> Work:
    """``POST /v1/embeddings``. Raises RequestError."""
    data = _parse_json(body, model)
    given = data.get("input")
    if isinstance(given, list) and given and not all(isinstance(one, int) for one in given):
        inputs = given
    else:
        inputs = [given]
    if not all(isinstance(one, str | list) and one for one in inputs):
        raise RequestError("input must be text, tokens, or lists of them", param="input")
    dimensions = data.get("dimensions") or DIMENSIONS
    if type(dimensions) is not int or not 1 <= dimensions <= 4096:
        raise RequestError("dimensions must be between 1 and 4096", param="dimensions")
    in_base64 = data.get("encoding_format") == "base64"
    vectors = []
    for index, one in enumerate(inputs):
        vector = _vector(one, dimensions)
        packed = base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()
        embedding: object = packed if in_base64 else vector
        vectors.append({"index": index, "object": "embedding", "embedding": embedding})
    tokens = sum(_tokens(one) for one in inputs)
    answer = {
        "id": "embd-demo",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": vectors,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }
    return Work(delivery=Delivery(body=compact_json(answer)), prompt_tokens=tokens, steps=1)


def rerank(body: bytes, *, model: str) -> Work:
    """``POST /v1/rerank``. Raises RequestError."""
    data = _parse_json(body, model)
    query, documents = data.get("query"), data.get("documents")
    if not isinstance(query, str) or not isinstance(documents, list):
        raise RequestError("query must be text and documents a list", param="query")
    given = [one.get("text") if isinstance(one, dict) else one for one in documents]
    texts = [one for one in given if isinstance(one, str)]
    if not texts or len(texts) != len(given):
        raise RequestError("documents must be texts", param="documents")
    ranked = sorted((-_relevance(query, text), index) for index, text in enumerate(texts))
    results = [
        {"index": index, "document": {"text": texts[index]}, "relevance_score": -score}
        for score, index in ranked
    ]
    tokens = sum(_tokens(query) + _tokens(text) for text in texts)
    answer = {
        "id": "rerank-demo",
        "model": model,
        "usage": {"total_tokens": tokens},
        "results": results[: data.get("top_n") or len(results)],
    }
    return Work(delivery=Delivery(body=compact_json(answer)), prompt_tokens=tokens, steps=1)


def transcription(body: bytes, content_type: str, *, label: str, model: str, tokens: int) -> Work:
    """``POST /v1/audio/transcriptions``. Raises RequestError."""
    form = _parse_form(body, content_type)
    fields = {name: value.decode() for name, value in form.items() if name != "file"}
    audio = form.get("file")
    if not audio:
        raise RequestError("[{'type': 'missing', 'loc': ('body', 'file')}]", status=422)
    _check_model(fields.get("model"), model)
    words = _words(f"{label} heard {len(audio)} bytes, {hashlib.sha256(audio).hexdigest()[:8]}:", tokens)
    text = "".join(words)
    seconds = round(len(audio) * SECONDS_PER_BYTE, 3)
    heard = max(1, math.ceil(seconds * 10))
    usage = {
        "type": "tokens",
        "input_tokens": heard,
        "output_tokens": len(words),
        "total_tokens": heard + len(words),
    }
    if fields.get("stream", "").lower() in ("true", "1"):
        delivery = Delivery(
            headers=list(STREAM_HEADERS),
            script=_transcript_events(words, usage),
            whole=lambda: compact_json({"text": text, "usage": usage}),
            early_head=True,
        )
    else:
        delivery = _whole_transcript(fields.get("response_format", "json"), text, seconds, usage)
    return Work(delivery=delivery, prompt_tokens=heard, steps=len(words))


def _transcript_events(words: Sequence[str], usage: Mapping[str, object]) -> Iterator[Item]:
    for word in words:
        yield _event({"type": "transcript.text.delta", "delta": word})
    done = _event({"type": "transcript.text.done", "text": "".join(words), "usage": usage})
    yield Final(done + b"data: [DONE]\n\n")


def _whole_transcript(kind: str, text: str, seconds: float, usage: Mapping[str, object]) -> Delivery:
    end = f"00:00:{seconds:06.3f}"
    plain = [("content-type", "text/plain; charset=utf-8")]
    match kind:
        case "json":
            return Delivery(body=compact_json({"text": text, "usage": usage}))
        case "verbose_json":
            segment = {"id": 0, "start": 0.0, "end": seconds, "text": text}
            answer = {"task": "transcribe", "language": "english", "duration": seconds, "text": text}
            duration = {"type": "duration", "seconds": seconds}
            return Delivery(body=compact_json({**answer, "segments": [segment], "usage": duration}))
        case "text":
            return Delivery(body=f"{text}\n".encode(), headers=plain)
        case "srt":
            subtitle = f"1\n00:00:00,000 --> {end.replace('.', ',')}\n{text}\n\n"
            return Delivery(body=subtitle.encode(), headers=plain)
        case "vtt":
            subtitle = f"WEBVTT\n\n00:00:00.000 --> {end}\n{text}\n\n"
            return Delivery(body=subtitle.encode(), headers=[("content-type", "text/vtt; charset=utf-8")])
    raise RequestError(f"response_format {kind!r} is not supported", param="response_format")


def speech(body: bytes, *, model: str) -> Work:
    """``POST /v1/audio/speech``. Raises RequestError."""
    data = _parse_json(body, model)
    text, voice = data.get("input"), data.get("voice")
    if not isinstance(text, str) or not text:
        raise RequestError("input must be text", param="input")
    if not isinstance(voice, str):
        raise RequestError("voice must be given", param="voice")
    kind = data.get("response_format") or "mp3"
    if kind not in SPOKEN_TYPES:
        raise RequestError(f"response_format {kind!r} is not supported", param="response_format")
    pieces = spoken(text, voice=voice, kind=kind)
    if data.get("stream_format") == "sse":
        usage = {"input_tokens": _tokens(text), "output_tokens": len(pieces)}
        usage["total_tokens"] = sum(usage.values())
        delivery = Delivery(headers=list(STREAM_HEADERS), script=_speech_events(pieces, usage))
    else:
        *first, last = pieces
        script = iter([*first, Final(last)])
        delivery = Delivery(headers=[("content-type", SPOKEN_TYPES[kind])], script=script)
    return Work(delivery=delivery, prompt_tokens=_tokens(text), steps=len(pieces))


def spoken(text: str, *, voice: str, kind: str) -> list[bytes]:
    """The audio of ``text``, piece by piece: one per word, after a header where the format has one."""
    pieces = [_samples(f"{voice} {word}") for word in text.split() or [text]]
    if kind == "wav":
        whole = BytesIO()
        with wave.open(whole, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(SAMPLE_RATE)
            file.writeframes(b"".join(pieces))
        header = whole.getvalue()[: -sum(map(len, pieces))]
        pieces[0] = header + pieces[0]
    return pieces


def _samples(seed: str) -> bytes:
    """A twentieth of a second of quiet noise, the same for the same seed."""
    digest = hashlib.sha256(seed.encode(errors="replace")).digest()
    return struct.pack(
        f"<{SAMPLES_PER_WORD}h",
        *(16 * (byte - 128) for byte in itertools.islice(itertools.cycle(digest), SAMPLES_PER_WORD)),
    )


def _speech_events(pieces: Sequence[bytes], usage: Mapping[str, int]) -> Iterator[Item]:
    for piece in pieces:
        yield _event({"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()})
    yield Final(_event({"type": "speech.audio.done", "usage": usage}))


def _event(data: Mapping[str, object]) -> bytes:
    return b"data: %b\n\n" % compact_json(data)


def _parse_json(body: bytes, model: str) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise RequestError("[{'type': 'json_invalid', 'loc': ('body',), 'msg': 'JSON decode error'}]")
    _check_model(data.get("model"), model)
    return data


def _parse_form(body: bytes, content_type: str) -> dict[str, bytes]:
    message = email.message_from_bytes(
        b"Content-Type: " + content_type.encode("latin-1") + b"\r\n\r\n" + body, policy=email.policy.HTTP
    )
    if not message.is_multipart():
        raise RequestError("[{'type': 'missing', 'loc': ('body',)}]", status=422)
    form: dict[str, bytes] = {}
    for part in message.walk():
        name = part.get_param("name", header="content-disposition")
        value = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(value, bytes):
            form.setdefault(name, value)
    return form


def _check_model(asked: object, model: str) -> None:
    if asked != model:
        raise RequestError(f"The model `{asked}` does not exist.", status=404, param="model")


def _tokens(given: str | Sequence[object]) -> int:
    return (len(given.encode(errors="replace")) + 3) // 4 if isinstance(given, str) else len(given)


def _vector(given: str | Sequence[object], dimensions: int) -> list[float]:
    digest = hashlib.sha256(json.dumps(given).encode()).digest()
    raw = [byte - 127.5 for byte in itertools.islice(itertools.cycle(digest), dimensions)]
    length = math.sqrt(sum(one * one for one in raw))
    # Rounded to what a 32-bit float holds, so that both encodings say the same.
    return list(struct.unpack(f"<{dimensions}f", struct.pack(f"<{dimensions}f", *(x / length for x in raw))))


def _relevance(query: str, text: str) -> float:
    wanted = set(query.lower().split())
    shared = wanted & set(text.lower().split())
    return round(len(shared) / max(1, len(wanted)), 4)


def _words(lead: str, tokens: int) -> list[str]:
    first, *others = lead.split()
    said = [first, *(f" {word}" for word in others)]
    return said + list(itertools.islice(itertools.cycle(FILLER), max(0, tokens - len(said))))
