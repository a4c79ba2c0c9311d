"""The working copy in the admin: rows with the grammar's rules as field errors, and what serves now."""

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.db import models
from django.db.models import QuerySet
from django.forms.models import BaseInlineFormSet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html

from routing import wording
from routing.console.fleet import ScopeView, read_fleet
from routing.console.scopes import MAX_SCOPES, address
from routing.models import (
    AudioRoute,
    GpuRole,
    Host,
    ModelRoute,
    PurposeModel,
    ReplicaMember,
    Resource,
    RouterSettings,
    Tier,
)
from routing.permissions import OPERATE_TIER
from routing.refusals import Refused
from routing.router import live
from routing.scopes import ScopeId
from routing.templatetags.console import badge
from routing.working_copy import tier_faults

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    MemberFormSetBase = BaseInlineFormSet[ReplicaMember, Tier, forms.ModelForm[ReplicaMember]]
    MemberInlineBase = admin.StackedInline[ReplicaMember, Tier]
    RouteInlineBase = admin.TabularInline[ModelRoute, Tier]
else:
    # Not generic at run time.
    ModelAdmin = admin.ModelAdmin
    MemberFormSetBase = BaseInlineFormSet
    MemberInlineBase = admin.StackedInline
    RouteInlineBase = admin.TabularInline


class WorkingCopyAdmin(ModelAdmin):
    """Rows that are published and activated before they are served; the pages say how far they are."""

    change_form_template = "console/working_form.html"
    change_list_template = "console/working_list.html"
    formfield_overrides = {
        models.JSONField: {"widget": forms.Textarea(attrs={"rows": 4, "cols": 60, "spellcheck": "false"})}
    }
    save_on_top = False


class ScopeAdmin(WorkingCopyAdmin):
    """Rows that may be serving: with their state now, and with what can be done to them."""

    actions = ("quiesce", "drain", "readmit")

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(OPERATE_TIER)

    def scope_of(self, row: Any) -> ScopeId:
        raise NotImplementedError

    def get_list_display(self, request: HttpRequest) -> Any:
        """With the state of each row's scope, read once for the whole list."""
        known = serving()

        @admin.display(description="now")
        def now(row: Any) -> str:
            view = known.get(self.scope_of(row))
            if view is None:
                return format_html('<span class="quiet">{}</span>', "not served")
            return render_to_string("console/_badge.html", badge(view.state))

        first, *rest = self.list_display
        return [first, now, *rest]

    @admin.action(description="Quiesce selected, where they serve", permissions=["operate"])
    def quiesce(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self._ask(request, queryset, "quiesce")

    @admin.action(description="Drain selected, where they serve", permissions=["operate"])
    def drain(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self._ask(request, queryset, "drain")

    @admin.action(description="Readmit selected, where they serve", permissions=["operate"])
    def readmit(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self._ask(request, queryset, "readmit")

    def _ask(self, request: HttpRequest, queryset: QuerySet[Any], verb: str) -> HttpResponse | None:
        """To the page that asks once more about those of the rows that are configured now."""
        wanted = [self.scope_of(row) for row in queryset]
        known = serving()
        scopes = [scope for scope in wanted if scope in known]
        if not scopes or len(scopes) > MAX_SCOPES:
            text = "None of them is served now." if not scopes else f"Choose at most {MAX_SCOPES}."
            self.message_user(request, text, messages.WARNING)
            return None
        if len(scopes) < len(wanted):
            left = ", ".join(str(scope) for scope in wanted if scope not in known)
            self.message_user(request, f"Not served now, and left out: {left}.", messages.WARNING)
        return redirect(address(verb, scopes))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        row = kwargs.get("obj")
        if row is not None and self.has_operate_permission(request):
            scope = self.scope_of(row)
            view = serving().get(scope)
            if view is not None:
                verbs = ("quiesce",) if view.hold is None else ("drain", "readmit")
                context["offers"] = [(verb, address(verb, [scope])) for verb in verbs]
        return super().render_change_form(request, context, *args, **kwargs)


def serving() -> dict[ScopeId, ScopeView]:
    """Every scope that this process serves now; none where it serves nothing."""
    try:
        fleet = read_fleet(live())
    except (Refused, RuntimeError):
        return {}
    return {view.id: view for card in fleet.cards for view in (card.scope, *card.members)}


class MemberFormSet(MemberFormSetBase):
    """The members of one tier, held to what only all of them together can break."""

    def clean(self) -> None:
        super().clean()
        if any(form.errors for form in self.forms):
            return
        kept = [
            form
            for form in self.forms
            if (form.has_changed() or form.instance.pk) and not form.cleaned_data.get("DELETE")
        ]
        known = set(self.instance.table_faults())
        together: list[str] = []
        for fault in tier_faults(self.instance, [form.instance for form in kept]):
            number, column = _member_place(fault.path)
            if fault in known:
                continue
            if number is None or number >= len(kept):
                together.append(fault.message)
            else:
                form = kept[number]
                form.add_error(column if column in form.fields else None, fault.message)
        if together:
            raise forms.ValidationError(together)


def _member_place(path: str) -> tuple[int | None, str]:
    """``replicas[1].id``: the number of the member, None where it is no member's, and its column."""
    head, _, key = path.partition(".")
    number = head.removeprefix("replicas").strip("[]")
    key = key.partition(".")[0].partition("[")[0]
    return (int(number) if number.isdigit() else None), ReplicaMember.COLUMNS.get(key, key)


class MemberInline(MemberInlineBase):
    model = ReplicaMember
    formset = MemberFormSet
    extra = 0
    fields = (
        ("identifier", "position"),
        "base_url",
        ("host_id", "resource_id"),
        ("qualification_ref", "max_concurrency"),
    )


class RouteInline(RouteInlineBase):
    model = ModelRoute
    extra = 0
    verbose_name = "alias"
    verbose_name_plural = "aliases"
    fields = ("alias", "position")


@admin.register(Tier)
class TierAdmin(ScopeAdmin):
    """A tier with its members and aliases."""

    inlines = (RouteInline, MemberInline)
    list_display = ("identifier", "shape", "model", "context_limit", "max_concurrency", "position")
    search_fields = ("identifier", "model", "routes__alias")
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "identifier",
                    "base_url",
                    "model",
                    "context_limit",
                    "dialect",
                    "description",
                    "position",
                )
            },
        ),
        (
            "Admission",
            {
                "fields": (
                    "replica_strategy",
                    "max_concurrency",
                    "max_output_tokens",
                    "timeout",
                    "first_byte_timeout",
                )
            },
        ),
        ("Readiness", {"fields": ("health_path", "model_identity", "metadata_source")}),
        (
            "Replica identity",
            {
                "description": "Of replica tiers: all four, shared by every member.",
                "fields": Tier.IDENTITY,
            },
        ),
        (
            "Upstream",
            {"fields": ("auth_env", "tool_support", "wires", "extra_body", "extra_body_defaults", "privacy")},
        ),
        ("Labels", {"fields": ("engine", "quantization", "params")}),
    )

    def scope_of(self, row: Tier) -> ScopeId:
        return ScopeId(row.identifier)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Tier]:
        rows: QuerySet[Tier] = super().get_queryset(request)
        return rows.annotate(member_count=models.Count("members"))

    @admin.display(description="shape")
    def shape(self, row: Any) -> str:
        if row.base_url:
            return "direct"
        members = f"{row.member_count} member{'' if row.member_count == 1 else 's'}"
        return f"{members}, {wording.plain(row.replica_strategy or 'round_robin')}"


@admin.register(ReplicaMember)
class ReplicaMemberAdmin(ScopeAdmin):
    """Every member of every tier; they are edited with their tier."""

    list_display = ("identifier", "tier", "host_id", "resource_id", "max_concurrency")
    list_filter = ("tier",)
    list_select_related = ("tier",)
    search_fields = ("identifier", "tier__identifier", "resource_id")

    def scope_of(self, row: ReplicaMember) -> ScopeId:
        return ScopeId(row.tier.identifier, row.identifier)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(ModelRoute)
class ModelRouteAdmin(WorkingCopyAdmin):
    list_display = ("alias", "tier", "position")
    list_filter = ("tier",)
    search_fields = ("alias",)


@admin.register(RouterSettings)
class RouterSettingsAdmin(WorkingCopyAdmin):
    """The one row of settings; it is edited, never added or deleted."""

    fieldsets = (
        ("Server", {"fields": ("auth_env", "decision_log_path")}),
        (
            "Refusals and timeouts",
            {"fields": ("exhaustion_status", "connect_timeout", "first_byte_timeout", "relay_timeout")},
        ),
        (
            "Readiness probes",
            {
                "fields": (
                    "availability_probe_interval",
                    "availability_probe_timeout",
                    "availability_probe_max_bytes",
                )
            },
        ),
        ("Topology", {"fields": ("topology_id",)}),
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        return RouterSettings.current() if object_id == str(RouterSettings.SINGLETON) else None

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return redirect(reverse("admin:routing_routersettings_change", args=[RouterSettings.SINGLETON]))


@admin.register(PurposeModel)
class PurposeModelAdmin(WorkingCopyAdmin):
    list_display = ("identifier", "kind", "model", "position")


@admin.register(AudioRoute)
class AudioRouteAdmin(WorkingCopyAdmin):
    list_display = ("identifier", "purpose", "model", "default", "position")


@admin.register(Host)
class HostAdmin(WorkingCopyAdmin):
    list_display = ("identifier", "roles", "os", "position")


@admin.register(Resource)
class ResourceAdmin(WorkingCopyAdmin):
    list_display = ("identifier", "host", "role", "gpu_role", "workload", "position")
    list_filter = ("host", "role")
    list_select_related = ("host", "gpu_role")


@admin.register(GpuRole)
class GpuRoleAdmin(WorkingCopyAdmin):
    list_display = ("identifier", "host", "vram_mib", "reserve_mib", "position")
    list_select_related = ("host",)
