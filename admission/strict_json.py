"""JSON read strictly: what one reader may see and another overlook is an error."""

import json
import math
from typing import NoReturn


def loads(data: bytes) -> object:
    """The value of a JSON text in UTF-8.

    Raises ValueError, which repeats nothing of the text, when it is no JSON, repeats a key of an object,
    holds NaN, Infinity or a number beyond them, or nests deeper than the interpreter's stack allows.
    """
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite
        )
    except (ValueError, RecursionError):
        raise ValueError("the text is not strict JSON") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError
