"""What every page of the console shares: who may see it, and its two forms, whole page or fragment."""

from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Concatenate, Final, ParamSpec

from django import shortcuts
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_http_methods
from django_htmx.http import HttpResponseClientRefresh

from routing.permissions import ACTIVATE_SNAPSHOT, OPERATE_TIER
from routing.refusals import Refused

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]

Crumb = tuple[str, str]
"""A page on the way to another: its name and its address."""

VIEW_FLEET: Final = "routing.view_tier"
"""To look at the fleet and at the configuration; both groups have it."""
VIEW_SNAPSHOTS: Final = "routing.view_routersnapshot"
EDIT_WORKING_COPY: Final = "routing.change_tier"


def crumb(name: str, view: str, *args: object) -> Crumb:
    """The page of ``view`` as a part of a trail."""
    return name, reverse(view, args=args)


def page(permission: str, *methods: str) -> Callable[[View[P]], View[P]]:
    """A page for staff who hold ``permission``; ``methods`` besides GET and HEAD.

    Others are sent to the log-in, or get 403 when they are logged in. A fragment that was asked for after the
    session ended reloads the page it was for.
    """

    def decorate(view: View[P]) -> View[P]:
        def allowed(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            if not request.user.has_perm(permission):
                # Not raised: that would leave a traceback in the log for what is no fault.
                return shortcuts.render(request, "403.html", status=403)
            return view(request, *args, **kwargs)

        gated: View[P] = admin.site.admin_view(require_http_methods(["GET", "HEAD", *methods])(allowed))

        def entered(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            if is_fragment(request) and not admin.site.has_permission(request):
                return HttpResponseClientRefresh()
            response = gated(request, *args, **kwargs)
            patch_vary_headers(response, ["HX-Request"])
            return response

        update_wrapper(entered, view)
        return entered

    return decorate


def is_fragment(request: HttpRequest) -> bool:
    """Whether htmx asks, so that a part of a page is wanted."""
    return bool(getattr(request, "htmx", False))


def render(
    request: HttpRequest,
    template: str,
    title: str,
    context: Mapping[str, object],
    *,
    trail: Sequence[Crumb] = (),
    here: str | None = None,
    status: int = 200,
) -> TemplateResponse:
    """``template`` as a whole page in the admin's frame, or its content alone for htmx.

    ``trail`` are the pages above it, the outermost first; ``here`` is its own name there where that is
    shorter than its title.
    """
    fragment = is_fragment(request)
    frame = {} if fragment else admin.site.each_context(request)
    return TemplateResponse(
        request,
        template,
        {
            **frame,
            "base": "console/fragment.html" if fragment else "console/page.html",
            "fragment": fragment,
            "title": title,
            "trail": trail,
            "here": here or title,
            "may_operate": request.user.has_perm(OPERATE_TIER),
            "may_activate": request.user.has_perm(ACTIVATE_SNAPSHOT),
            "may_edit": request.user.has_perm(EDIT_WORKING_COPY),
            **context,
        },
        status=status,
    )


def refused(request: HttpRequest, refusal: Refused) -> HttpResponse:
    """A page that says why there is nothing to show or nothing was done."""
    response = render(request, "console/refused.html", "Not now", {"refusal": refusal}, status=refusal.status)
    if refusal.status == 503:
        response["Retry-After"] = "1"
    return response


def actor_of(request: HttpRequest) -> str:
    """The name under which a change is recorded."""
    return request.user.get_username()
