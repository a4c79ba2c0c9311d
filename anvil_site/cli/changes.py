"""What an activation or a promotion changes, waits for and does, in lines; as the console's pages have it."""

from collections.abc import Iterable, Mapping

from routing import wording
from routing.scopes import ScopeId

from .outcome import Json
from .shapes import rows_of, table_of


def scope_words(row: Mapping[str, Json]) -> str:
    """The name of the scope that a row is about: the tier, or the tier and its member."""
    member = row.get("member_id")
    return str(ScopeId(f"{row.get('tier_id')}", None if member is None else f"{member}"))


def preview_line(what: str) -> str:
    """What people read first of a command that was not confirmed."""
    return f"preview: {what}; nothing was changed, --confirm does it"


def change_lines(data: Mapping[str, Json]) -> Iterable[str]:
    """A preview's changes: what becomes of each scope, and what it needs."""
    waiting = {scope_words(row) for row in rows_of(data, "scopes")}
    changes, settings = rows_of(data, "changes"), data.get("settings")
    for row in changes:
        scope, kind, keys = scope_words(row), row.get("change"), row.get("keys")
        named = f" {', '.join(map(str, keys))}" if isinstance(keys, list) and keys else ""
        if row.get("needs_drain") is not True:
            needs = "needs nothing"
        else:
            needs = "is to be drained" if scope in waiting else "is drained"
        if kind == "removed":
            afterwards = "gone afterwards"
        elif row.get("starts_cold") is True:
            afterwards = "serves once its own first probe has passed"
        else:
            afterwards = "its traffic does not notice"
        yield f"  {scope}: {kind}{named}; {needs}; {afterwards}"
    for path in settings if isinstance(settings, list) else ():
        yield f"  {path}: changed; applies to the next request"
    if not changes and not settings:
        yield "  it means exactly what is active now"


def step_lines(data: Mapping[str, Json]) -> Iterable[str]:
    """Each step that was taken, and how it ended; then the scopes that a refusal is about."""
    for row in rows_of(data, "steps"):
        scope = "" if row.get("tier_id") is None else scope_words(row)
        yield f"  {wording.step(str(row.get('step')), scope)}: {wording.outcome(str(row.get('outcome')))}"
    for row in rows_of(data, "scopes"):
        words = [f"{row['state']}"] if "state" in row else []
        active = row.get("active_requests")
        if type(active) is int:
            words.append(wording.count(active, "running request"))
        if isinstance(row.get("reason"), str):
            words.append(f"{wording.readiness(str(row['reason']))} ({row['reason']})")
        yield f"  {scope_words(row)}" + (f": {', '.join(words)}" if words else "")


def promotion_lines(data: Mapping[str, Json]) -> Iterable[str]:
    """A promotion's steps, where it stands, and what to do about a stopped one."""
    promotion = table_of(data, "promotion")
    if promotion:
        yield from step_lines(promotion)
        state = wording.plain(str(promotion.get("state")))
        yield f"{promotion.get('tier_id')} to {promotion.get('resource_id')}: {state}"
        if isinstance(promotion.get("next_step"), str):
            yield f"{promotion['next_step']}"
