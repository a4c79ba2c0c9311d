"""``anvil keys create|list|revoke``: API keys, through the router that holds them."""

from collections.abc import Iterable, Mapping

from routing.refusals import KEY_RULES

from .changes import preview_line
from .client import call
from .outcome import Json, Outcome, RouterFault, clause, failed, refusal_of
from .shapes import bounded, table_of
from .spec import Arguments

PATH = "/v1/admin/keys"


def create(arguments: Arguments) -> Outcome:
    """Make a key. Its secret is in this one answer and nowhere else, ever."""
    scopes = list(arguments.words("scopes") or ())
    expires = arguments.instant("expires")
    wanted: dict[str, Json] = {"name": arguments.required("name"), "scopes": scopes}
    if (ceiling := arguments.whole("max-concurrency")) is not None:
        wanted["max_concurrency"] = ceiling
    if expires is not None:
        wanted["expires_at"] = expires.isoformat()
    if not arguments.flag("confirm"):
        return _preview("create", f"create a key for {', '.join(scopes)}", {"scopes": scopes})
    try:
        answer = call("POST", PATH, body=wanted)
    except RouterFault as fault:
        return refusal_of(fault, hint=_rule_of(fault))
    data = bounded(answer.body)
    key = data.get("key") if isinstance(data, Mapping) else None
    if not isinstance(key, str):
        return failed("malformed_answer", online=True)
    lines = (key, "This is the only time that the key is shown.")
    return Outcome(data=data, lines=lines, online=True)


def _rule_of(fault: RouterFault) -> str | None:
    """The rule of the field that the router refused, if it named one."""
    error = table_of(fault.body or {}, "error")
    field = error.get("param")
    if fault.code != "invalid_request" or not isinstance(field, str) or field not in KEY_RULES:
        return None
    return clause(KEY_RULES[field])


def listing(arguments: Arguments) -> Outcome:
    answer = call("GET", PATH)
    data = bounded(answer.body)
    if not isinstance(data, Mapping) or not isinstance(data.get("keys"), list):
        return failed("malformed_answer", online=True)
    return Outcome(data=data, lines=tuple(_lines(data["keys"])) or ("no keys",), online=True)


def revoke(arguments: Arguments) -> Outcome:
    number = arguments.whole("id")
    if not arguments.flag("confirm"):
        return _preview("revoke", f"revoke key {number}", {"id": number})
    answer = call("DELETE", f"{PATH}/{number}")
    data: dict[str, Json] = {
        "applied": True,
        "action": "revoke",
        "id": number,
        "key": bounded(answer.body) or None,
    }
    return Outcome(
        data=data, lines=(f"key {number} is revoked; it fails from its next request on",), online=True
    )


def _preview(action: str, words: str, what: Mapping[str, Json]) -> Outcome:
    return Outcome(
        data={"applied": False, "dry_run": True, "action": action, **what},
        lines=(preview_line(words),),
    )


def _lines(keys: Json) -> Iterable[str]:
    for key in keys if isinstance(keys, list) else ():
        if isinstance(key, Mapping):
            scopes = key.get("scopes")
            state = "revoked" if key.get("revoked") is True else f"expires {key.get('expires_at') or 'never'}"
            listed = ",".join(str(scope) for scope in scopes) if isinstance(scopes, list) else ""
            yield f"{key.get('id')} {key.get('prefix')} {key.get('name')}: {listed}; {state}"
