"""Drawings and figures of the console's pages: SVG without a style or script in it, numbers in one form."""

import datetime
from typing import Any, Final

from django import template
from django.utils import timezone

from routing import wording
from routing.console.configuration import active_snapshot
from routing.console.history import HEIGHT, WIDTH, Sparkline
from routing.console.pages import EDIT_WORKING_COPY
from routing.console.scopes import address
from routing.permissions import ACTIVATE_SNAPSHOT
from routing.scopes import ScopeId
from routing.working_copy import WorkingCopy

register = template.Library()

BAR_WIDTH: Final = 100
NOTHING: Final = "–"  # noqa: RUF001 - a dash that is wide enough to be seen in a column of figures


@register.inclusion_tag("console/_badge.html")
def badge(word: str) -> dict[str, object]:
    """A state: its word beside a shape of its own, so that colour is never alone in telling it."""
    return {"word": word, "kind": word.replace(" ", "-")}


@register.inclusion_tag("console/_bar.html")
def bar(active: int, ceiling: int | None, total: int | None = None) -> dict[str, object]:
    """How many of the places that are open are taken; without a ceiling the number alone.

    ``total`` is said beside it where some places are closed.
    """
    share = 0.0 if not ceiling else min(1.0, active / ceiling)
    return {
        "active": active,
        "ceiling": ceiling,
        "total": total if total != ceiling else None,
        "filled": round(share * BAR_WIDTH, 1),
        "is_full": ceiling is not None and active >= ceiling,
    }


@register.inclusion_tag("console/_pressure.html")
def pressure(value: Any) -> dict[str, object]:
    """How full an engine says it is, and how far that can be believed."""
    percent = value.percent
    return {
        "freshness": value.freshness,
        "percent": percent,
        "filled": 0.0 if percent is None else round(min(100.0, percent), 1),
        "is_full": percent is not None and percent >= 100,
    }


@register.inclusion_tag("console/_sparkline.html")
def sparkline(trend: Sparkline | None) -> dict[str, object]:
    """Running requests of the last 15 minutes."""
    return {"trend": trend, "width": WIDTH, "height": HEIGHT}


@register.inclusion_tag("console/_working_copy.html", takes_context=True)
def working_copy_state(context: template.Context) -> dict[str, object]:
    """Whether the working copy is empty, the same as what is active, or differs from it."""
    copy = WorkingCopy.read()
    user = context["request"].user
    state = "empty" if copy.is_empty else "differs" if copy.differs_from(active_snapshot()) else "same"
    return {
        "state": state,
        "may_edit": user.has_perm(EDIT_WORKING_COPY),
        "may_activate": user.has_perm(ACTIVATE_SNAPSHOT),
    }


@register.simple_tag
def scope_url(name: str, scope: ScopeId) -> str:
    """The page of that name about one scope."""
    return address(name, [scope])


@register.filter
def seconds(value: float | None) -> str:
    """A time in seconds: ``87 ms``, ``1.24 s``, ``14 s``."""
    if value is None:
        return NOTHING
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


@register.filter
def elapsed(value: float) -> str:
    """A time that a clock shows: ``0:07``, ``12:40``, ``1:02:03``."""
    whole = max(0, int(value))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


@register.filter
def rate(value: float) -> str:
    """Requests a second."""
    return f"{value:.0f}/s" if value >= 100 else f"{value:.1f}/s"


@register.filter
def share(value: float | None) -> str:
    """0 to 1 as per cent."""
    return NOTHING if value is None else f"{value * 100:.1f} %"


@register.filter
def ago(value: datetime.datetime | None) -> str:
    """How long ago a moment was."""
    return "" if value is None else wording.ago(value, timezone.now())


@register.filter
def number(value: int) -> str:
    """A count with its thousands apart."""
    return f"{value:,}"


@register.filter
def plain(code: str) -> str:
    """A code as people write it."""
    return wording.plain(code)


@register.filter
def outcome(code: str) -> str:
    """How something ended, in words."""
    return wording.outcome(code)


@register.filter
def strategy_words(strategy: str) -> str:
    """How a tier chooses who serves."""
    return wording.STRATEGIES.get(strategy, strategy)
