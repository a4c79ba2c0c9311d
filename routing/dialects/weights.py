"""What the gates weigh of a request whose content is nested: texts and media, wherever they stand."""

from typing import Final, NamedTuple

from routing.dialects.document import Fields
from routing.gates import Demand

_IMAGES: Final = frozenset({"image", "image_url", "input_image"})
_VIDEOS: Final = frozenset({"video", "video_url", "input_video"})
_INNER: Final = ("content", "output")


class Weight(NamedTuple):
    """UTF-8 bytes of text, and numbers of media parts."""

    text: int = 0
    images: int = 0
    videos: int = 0


def demand_of(body: bytes, places: tuple[str, ...], *, tools: bool, count_text: bool) -> Demand:
    """What the gates weigh of a request whose texts and media stand in the fields ``places`` of its body.

    Raises `RequestError` for a body that turns out malformed in its depths.
    """
    if not (count_text or may_hold_media(body)):
        return Demand(tools=tools)
    request = Fields.of_body(body)
    weight = weigh([request[place].value for place in places])
    return Demand(
        text_bytes=weight.text if count_text else 0, images=weight.images, videos=weight.videos, tools=tools
    )


def may_hold_media(body: bytes) -> bool:
    """Whether it is worth looking: an escaped word is still a word."""
    return b"image" in body or b"video" in body or b"\\u" in body


def weigh(content: object) -> Weight:
    """The weight of a content: a text, a part (a message is one), or any list of these.

    Content of another shape weighs nothing: it is the engine's to refuse. Walked without recursion, since a
    caller may nest as deep as JSON lets it.
    """
    text = images = videos = 0
    left = [content]
    while left:
        one = left.pop()
        if isinstance(one, str):
            text += len(one.encode("utf-8", "surrogatepass"))
        elif isinstance(one, list):
            left += one
        elif isinstance(one, dict):
            kind = one.get("type")
            if isinstance(kind, str) and kind in _IMAGES:
                images += 1
            elif isinstance(kind, str) and kind in _VIDEOS:
                videos += 1
            else:
                left += (one[name] for name in _INNER if name in one)
                said = one.get("text")
                if isinstance(said, str):
                    left.append(said)
    return Weight(text, images, videos)
