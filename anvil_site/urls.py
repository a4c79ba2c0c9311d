from django.contrib import admin
from django.urls import include, path, re_path
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import RedirectView

from anvil_site.openapi import DocsView, SchemaView
from routing.api import not_found
from telemetry.api import MetricsView

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="console:fleet")),
    path("", include("routing.console.urls")),
    path("", include("telemetry.console_urls")),
    path("admin/", admin.site.urls),
    path("v1/", include("routing.urls")),
    path("v1/", include("telemetry.urls")),
    path("metrics", MetricsView.as_view(), name="metrics"),
    path("api/schema/", SchemaView.as_view(), name="schema"),
    path("api/docs/", DocsView.as_view(), name="api-docs"),
    # Not csrf_exempt, a POST to nowhere would be answered with a page about cookies.
    re_path(r"^v1/", csrf_exempt(not_found)),
]

handler400 = "anvil_site.errors.bad_request"
handler500 = "anvil_site.errors.server_error"
