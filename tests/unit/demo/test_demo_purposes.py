"""What the demo engine says on the wires that are not chat."""

import base64
import json
import math
import struct
import wave
from io import BytesIO
from typing import Any

import pytest

from demo.delivery import Delivery, Work
from demo.purposes import embeddings, rerank, speech, spoken, transcription
from demo.replies import RequestError

AUDIO = b"RIFF\x00\r\n--bnd\r\n\xff"


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


def form(*, audio: bytes | None = AUDIO, **fields: str) -> bytes:
    parts = [
        f'--edge\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in {"model": "m", **fields}.items()
    ]
    if audio is not None:
        parts.append(
            b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
            + audio
            + b"\r\n"
        )
    return b"".join(parts) + b"--edge--\r\n"


def transcribe(*, audio: bytes | None = AUDIO, tokens: int = 5, **fields: str) -> Work:
    return transcription(
        form(audio=audio, **fields),
        "multipart/form-data; boundary=edge",
        label="a",
        model="m",
        tokens=tokens,
    )


def answer(work: Work) -> Any:
    assert work.delivery.body is not None
    return json.loads(work.delivery.body)


def sent(delivery: Delivery) -> bytes:
    return b"".join(item for item in delivery.items() if isinstance(item, bytes))


def events(delivery: Delivery) -> list[str]:
    return [part.removeprefix("data: ") for part in sent(delivery).decode().split("\n\n") if part]


def test_equal_texts_have_equal_vectors_of_length_one():
    vectors = answer(embeddings(body(input=["Zürich", "你好", "Zürich"]), model="m"))
    assert vectors["object"] == "list"
    assert vectors["model"] == "m"
    assert vectors["usage"]["prompt_tokens"] == 6
    first, second, third = (one["embedding"] for one in vectors["data"])
    assert first == third != second
    assert len(first) == 8
    assert math.isclose(sum(one * one for one in first), 1.0, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("given", "count"),
    [("Hi", 1), ([1, 2, 3], 1), ([[1, 2], [3]], 2), (["a", "b"], 2)],
)
def test_inputs_are_texts_or_tokens(given, count):
    assert len(answer(embeddings(body(input=given), model="m"))["data"]) == count


def test_base64_holds_the_same_vector():
    plain = answer(embeddings(body(input="Hi", dimensions=16), model="m"))["data"][0]["embedding"]
    packed = answer(embeddings(body(input="Hi", dimensions=16, encoding_format="base64"), model="m"))
    raw = base64.b64decode(packed["data"][0]["embedding"])
    assert list(struct.unpack("<16f", raw)) == plain


def test_documents_are_ranked_by_the_words_they_share():
    ranked = answer(rerank(body(query="red fox", documents=["a dog", {"text": "Red fox"}, "fox"]), model="m"))
    assert [(one["index"], one["relevance_score"]) for one in ranked["results"]] == [
        (1, 1.0),
        (2, 0.5),
        (0, 0.0),
    ]
    top = answer(rerank(body(query="fox", documents=["a", "fox"], top_n=1), model="m"))
    assert [one["index"] for one in top["results"]] == [1]


def test_a_transcript_tells_what_was_heard():
    said = answer(transcribe())
    assert said["text"] == "a heard 15 bytes, e847b110:"
    assert said["usage"] == {"type": "tokens", "input_tokens": 1, "output_tokens": 5, "total_tokens": 6}


@pytest.mark.parametrize(
    ("kind", "content_type", "start"),
    [
        ("text", "text/plain; charset=utf-8", b"a heard"),
        ("srt", "text/plain; charset=utf-8", b"1\n00:00:00,000 --> 00:00:00,000\na heard"),
        ("vtt", "text/vtt; charset=utf-8", b"WEBVTT\n\n00:00:00.000 --> 00:00:00.000\na heard"),
        ("verbose_json", "application/json", b'{"task":"transcribe"'),
    ],
)
def test_a_transcript_comes_in_every_format(kind, content_type, start):
    delivery = transcribe(response_format=kind).delivery
    assert delivery.headers == [("content-type", content_type)]
    assert delivery.body is not None
    assert delivery.body.startswith(start)


def test_a_streamed_transcript_says_the_same():
    *deltas, last, done = events(transcribe(stream="true", tokens=7).delivery)
    assert done == "[DONE]"
    whole = answer(transcribe(tokens=7))
    assert json.loads(last) == {"type": "transcript.text.done", **whole}
    assert "".join(json.loads(delta)["delta"] for delta in deltas) == whole["text"]
    assert len(deltas) == 7


def test_what_is_spoken_as_wav_can_be_played():
    delivery = speech(body(input="one two three", voice="v", response_format="wav"), model="m").delivery
    assert delivery.headers == [("content-type", "audio/wav")]
    with wave.open(BytesIO(sent(delivery))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (24_000, 1, 3600)


def test_speech_comes_word_by_word_as_bytes_or_events():
    pieces = spoken("one two", voice="v", kind="mp3")
    as_bytes = speech(body(input="one two", voice="v"), model="m").delivery
    assert as_bytes.headers == [("content-type", "audio/mpeg")]
    assert list(as_bytes.items()) == pieces
    *deltas, last = events(speech(body(input="one two", voice="v", stream_format="sse"), model="m").delivery)
    assert [base64.b64decode(json.loads(delta)["audio"]) for delta in deltas] == pieces
    assert json.loads(last) == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 2, "output_tokens": 2, "total_tokens": 4},
    }


@pytest.mark.parametrize(
    ("ask", "status", "param"),
    [
        (lambda: embeddings(b"{", model="m"), 400, None),
        (lambda: embeddings(body(input="Hi"), model="n"), 404, "model"),
        (lambda: embeddings(body(), model="m"), 400, "input"),
        (lambda: embeddings(body(input=[]), model="m"), 400, "input"),
        (lambda: embeddings(body(input="Hi", dimensions=0.5), model="m"), 400, "dimensions"),
        (lambda: rerank(body(query="q", documents=[3]), model="m"), 400, "documents"),
        (lambda: rerank(body(documents=["d"]), model="m"), 400, "query"),
        (lambda: transcribe(audio=None), 422, None),
        (lambda: transcribe(model="n"), 404, "model"),
        (lambda: transcribe(response_format="png"), 400, "response_format"),
        (lambda: transcription(b"{}", "application/json", label="a", model="m", tokens=1), 422, None),
        (lambda: speech(body(input="", voice="v"), model="m"), 400, "input"),
        (lambda: speech(body(input="Hi"), model="m"), 400, "voice"),
        (lambda: speech(body(input="Hi", voice="v", response_format="x"), model="m"), 400, "response_format"),
    ],
)
def test_what_cannot_be_answered_is_refused(ask, status, param):
    with pytest.raises(RequestError) as caught:
        ask()
    assert (caught.value.status, caught.value.param) == (status, param)
