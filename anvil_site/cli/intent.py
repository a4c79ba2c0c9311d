"""``anvil admission export|import``: the quiesce intent as the closed legacy document."""

import json
from collections.abc import Mapping

from admission.intent_document import IntentError, parse_document
from routing.documents import read_bounded

from .changes import preview_line
from .client import call
from .outcome import Json, Outcome, failed, refused
from .shapes import bounded
from .spec import Arguments

PATH = "/v1/admin/intent"


def export(arguments: Arguments) -> Outcome:
    answer = call("GET", PATH)
    data = bounded(answer.body)
    if not isinstance(data, Mapping):
        return failed("malformed_answer", online=True)
    return Outcome(data=data, document=json.dumps(data, allow_nan=False) + "\n", online=True)


def load(arguments: Arguments) -> Outcome:
    """Send the exact bytes of a document that is of the closed form; a preview says so of one that is not."""
    try:
        document = read_bounded(arguments.required_path("file"))
        parse_document(document)
    except OSError:
        return refused("document_unreadable")
    except IntentError as error:
        return refused(error.code)
    if not arguments.flag("confirm"):
        return Outcome(
            data={"applied": False, "dry_run": True, "action": "import"},
            lines=(preview_line("import of the intent document"),),
        )
    answer = call("PUT", PATH, body=document)
    data: dict[str, Json] = {"applied": True, "action": "import", "result": bounded(answer.body) or None}
    return Outcome(data=data, lines=("the intent document is imported",), online=True)
