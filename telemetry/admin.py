"""Decisions in the admin: a list to filter and search, and a page that explains each one."""

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.template.loader import render_to_string
from django.utils.html import format_html

from admission.admin import ReadOnlyAdmin
from routing import wording
from routing.admin import CodeFilter
from routing.templatetags.console import badge, seconds
from telemetry.console import decision_page
from telemetry.models import DecisionEntry


@admin.register(DecisionEntry)
class DecisionEntryAdmin(ReadOnlyAdmin):
    """What became of each request that had a route."""

    change_list_template = "console/wide_list.html"
    list_display = (
        *("when", "route", "scope", "became", "why", "freshness"),
        *("tokens", "took", "request"),
    )
    list_filter = (
        "outcome",
        "route",
        "requested_tier",
        "replica_member_id",
        ("reason", CodeFilter),
        "freshness",
    )
    search_fields = ("=request_id", "=workbench_run_id", "=task_id")
    search_help_text = "An exact request id, run id or task id."
    date_hierarchy = "recorded_at"
    list_per_page = 50
    show_full_result_count = False

    @admin.display(description="when, UTC", ordering="recorded_at")
    def when(self, entry: DecisionEntry) -> str:
        """With the zone at the head of the column: the list is wide."""
        return format_html('<span class="nowrap">{}</span>', f"{entry.recorded_at:%Y-%m-%d %H:%M:%S}")

    @admin.display(description="scope", ordering="requested_tier")
    def scope(self, entry: DecisionEntry) -> str:
        """The tier, and the member that was selected."""
        names = "/".join(filter(None, (entry.requested_tier, entry.replica_member_id)))
        return format_html('<span class="nowrap">{}</span>', names)

    @admin.display(description="outcome", ordering="outcome")
    def became(self, entry: DecisionEntry) -> str:
        return render_to_string("console/_badge.html", badge(entry.outcome))

    @admin.display(description="reason", ordering="reason")
    def why(self, entry: DecisionEntry) -> str:
        """As people write it; its sentence is shown on pointing, and on the decision's page."""
        told = wording.sentence(wording.attempt(entry.reason)) if entry.reason else ""
        return format_html('<span class="nowrap" title="{}">{}</span>', told, wording.plain(entry.reason))

    @admin.display(description="request id", ordering="request_id")
    def request(self, entry: DecisionEntry) -> str:
        """As much of it as tells requests apart; the rest is on the page of the decision."""
        return format_html('<code title="{}">{}</code>', entry.request_id, entry.request_id[:12])

    @admin.display(description="tokens")
    def tokens(self, entry: DecisionEntry) -> str:
        """In and out."""
        text = f"{entry.prompt_tokens:,} + {entry.completion_tokens:,}"
        return format_html('<span class="nowrap" title="in and out">{}</span>', text)

    @admin.display(description="took", ordering="latency_ms")
    def took(self, entry: DecisionEntry) -> str:
        return format_html('<span class="nowrap">{}</span>', seconds(entry.latency_ms / 1000))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """The decision in words, in the place of a form of columns."""
        entry = self.get_object(request, object_id)
        if not self.has_view_permission(request, entry):
            raise PermissionDenied
        if entry is None:
            raise Http404
        return decision_page(request, entry, {"opts": self.opts})
