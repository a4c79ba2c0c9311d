"""JSON that escapes half a surrogate pair, carried untouched.

``"\\ud83d"`` alone is allowed by JSON's grammar and real: servers that count in UTF-16 split an emoji over
two events, and the caller joins the halves. The JSON library refuses it, so such a document takes a detour:
each lone half is masked by text that does not occur in it, and unmasked in what was made from it.
"""

import re
from itertools import count

_ESCAPE = re.compile(
    rb"\\(?:[^u]|u(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|([dD][89a-fA-F][0-9a-fA-F]{2})|))"
)


def mask(document: bytes) -> tuple[bytes, bytes] | None:
    """``document`` without lone halves, and the mark that stands for each; None when it holds none."""
    mark = next(mark for number in count() if (mark := b"<half%d>" % number) not in document)
    masked = _ESCAPE.sub(lambda match: mark + match[1] if match[1] else match[0], document)
    return (masked, mark) if mark in masked else None


def unmask(document: bytes, mark: bytes) -> bytes:
    """``document`` with its lone halves back."""
    return document.replace(mark, b"\\u")
