"""First run: from an empty router to the first request, each step marked once it is done."""

from typing import Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from routing.console.configuration import DEMO_BASE_PORT
from routing.console.pages import VIEW_FLEET, crumb, page, render
from routing.models import RouterSnapshot
from routing.publishing import DOCUMENT_COLUMNS
from routing.router import live
from routing.working_copy import WorkingCopy

ADD_KEY: Final = "routing.add_apikey"
DEMO_ENGINES: Final = ("member-a", "member-b", "direct")


@page(VIEW_FLEET)
def guide(request: HttpRequest) -> HttpResponseBase:
    """The guide on its own page."""
    return show(request)


def show(request: HttpRequest) -> HttpResponse:
    """The guide, as far as this router has come."""
    router = live()
    aliases = list(router.active.config.model_routes) if router.active is not None else []
    context: dict[str, object] = {
        "is_active": router.active is not None,
        "latest": RouterSnapshot.objects.defer(*DOCUMENT_COLUMNS).first(),
        "copy_is_empty": WorkingCopy.read().is_empty,
        "has_key": not router.ring.enabled or not router.ring.is_empty,
        "may_make_keys": request.user.has_perm(ADD_KEY),
        "demo_engines": [(name, DEMO_BASE_PORT + offset) for offset, name in enumerate(DEMO_ENGINES)],
        "demo_base_port": DEMO_BASE_PORT,
        "base_url": request.build_absolute_uri("/v1"),
        "alias": aliases[0] if aliases else "YOUR-ALIAS",
    }
    return render(
        request, "console/guide.html", "First steps", context, trail=[crumb("Fleet", "console:fleet")]
    )
