"""The fleet page; while nothing is configured, the guide stands in its place."""

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from routing import promotion
from routing.console import guide
from routing.console.fleet import Fleet, read_fleet
from routing.console.pages import VIEW_FLEET, page, refused, render
from routing.router import Router, live
from routing.transitions import TransitionError

TITLE = "Fleet"


@page(VIEW_FLEET)
def fleet(request: HttpRequest) -> HttpResponseBase:
    """Every tier and member; asked again every second by `fleet_live`."""
    router = live()
    try:
        reading = read_fleet(router)
    except TransitionError as error:
        if error.code == "not_configured":
            return guide.show(request)
        return refused(request, error)
    return render(request, "console/fleet.html", TITLE, _about(router, reading))


@page(VIEW_FLEET)
def fleet_live(request: HttpRequest) -> HttpResponseBase:
    """The part of the fleet page that changes."""
    router = live()
    try:
        reading = read_fleet(router)
    except TransitionError as error:
        return refused(request, error)
    return render(request, "console/_fleet.html", TITLE, _about(router, reading))


def _about(router: Router, reading: Fleet) -> dict[str, object]:
    active = router.active
    return {
        "fleet": reading,
        "snapshot_id": None if active is None else active.snapshot_id,
        "no_key_yet": router.ring.enabled and router.ring.is_empty,
        "is_draining": router.draining,
        "stopped": promotion.stopped(router),
    }
