"""Snapshots, API keys and the audit trail in the admin; the working copy has a module of its own."""

from collections.abc import Iterator
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Exists, OuterRef, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html

from admission.admin import ReadOnlyAdmin
from routing import keys, wording, working_copy_admin  # noqa: F401 - its import registers the working copy
from routing.access import Scope
from routing.audit import Through
from routing.models import ActiveSnapshot, ApiKey, AuditEntry, RouterSnapshot
from routing.publishing import DOCUMENT_COLUMNS
from routing.refusals import Refused, not_ledger_owner
from routing.router import Router, live
from routing.templatetags.console import badge


def owner() -> Router:
    """The router of this process. Raises Refused where none runs, as in a command."""
    try:
        return live()
    except RuntimeError:
        raise not_ledger_owner() from None


class KeyForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """What a new key is to be; the rules are those of `routing.keys`."""

    scopes = forms.MultipleChoiceField(
        choices=[(scope.value, scope.value) for scope in Scope], widget=forms.CheckboxSelectMultiple
    )

    class Meta:
        model = ApiKey
        fields = ["name", "scopes", "max_concurrency", "expires_at"]
        help_texts = {
            "max_concurrency": "How many may run at once; empty: no limit.",
            "expires_at": "In UTC; empty: never.",
        }

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean() or self.cleaned_data
        if self.errors:
            return found
        fault = keys.fault_in(
            name=found["name"],
            scopes=found["scopes"],
            max_concurrency=found["max_concurrency"],
            expires_at=found["expires_at"],
        )
        if fault is not None:
            self.add_error(*fault)
        return found


class RevokedFilter(admin.SimpleListFilter):
    """Keys that were revoked, and the others."""

    title = "state"
    parameter_name = "revoked"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("no", "not revoked"), ("yes", "revoked")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> QuerySet[ApiKey]:
        if self.value() not in ("yes", "no"):
            return queryset
        return queryset.filter(revoked_at__isnull=self.value() == "no")


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    """Keys are made here, shown once, and revoked; what a key may do never changes."""

    form = KeyForm
    list_display = [
        "name",
        "prefix",
        "granted",
        "max_concurrency",
        "expires_at",
        "last_used_at",
        "revoked_at",
    ]
    list_filter = [RevokedFilter]
    search_fields = ["name", "prefix"]
    actions = ["revoke"]

    @admin.display(description="scopes")
    def granted(self, row: ApiKey) -> str:
        return ", ".join(row.scopes)

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> Any:
        if obj is None:
            return KeyForm.Meta.fields
        return [
            *("name", "prefix", "granted", "max_concurrency", "expires_at"),
            *("created_at", "created_by", "last_used_at", "revoked_at"),
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> Any:
        return [] if obj is None else self.get_fields(request, obj)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("routing.add_apikey")

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("routing.change_apikey")

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().changeform_view(request, *args, **kwargs)
        except Refused as refusal:
            self.message_user(request, str(refusal), messages.ERROR)
            return HttpResponseRedirect(reverse("admin:routing_apikey_changelist"))

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        row, secret = keys.create(
            owner(),
            name=obj.name,
            scopes=obj.scopes,
            max_concurrency=obj.max_concurrency,
            expires_at=obj.expires_at,
            actor=request.user.get_username(),
            through=Through.CONSOLE,
        )
        obj.pk = row.pk
        request.made_key = secret  # type: ignore[attr-defined]

    def response_add(self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None) -> Any:
        """The key itself, in the answer to the form: not in a message, which would be kept in a cookie."""
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": "The key is made",
            "name": obj.name,
            "key": request.made_key,  # type: ignore[attr-defined]
        }
        return TemplateResponse(request, "admin/routing/apikey/made.html", context)

    @admin.action(description="Revoke selected API keys", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> HttpResponse | None:
        """Ask once more, then end them."""
        if "confirmed" not in request.POST:
            context = {
                **self.admin_site.each_context(request),
                "opts": self.opts,
                "title": "Revoke API keys",
                "keys": queryset.filter(revoked_at=None),
                "selected": request.POST.getlist(ACTION_CHECKBOX_NAME),
                "action_checkbox_name": ACTION_CHECKBOX_NAME,
            }
            return TemplateResponse(request, "admin/routing/apikey/revoke.html", context)
        for row in queryset.filter(revoked_at=None):
            try:
                keys.revoke(owner(), row.pk, actor=request.user.get_username(), through=Through.CONSOLE)
            except Refused as refusal:
                self.message_user(request, f"The key {row.name}: {refusal}", messages.ERROR)
            else:
                self.message_user(request, f"The key {row.name} is revoked.", messages.SUCCESS)
        return None


class CodeFilter(admin.AllValuesFieldListFilter):
    """The values that occur, written as people write them."""

    def choices(self, changelist: Any) -> Iterator[Any]:
        for choice in super().choices(changelist):
            yield {**choice, "display": wording.plain(str(choice["display"]))}


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """What was done, by whom and why."""

    change_list_template = "console/wide_list.html"
    list_display = ["at", "actor", "through", "did", "what", "reason", "ended"]
    list_filter = [("action", CodeFilter), "through", "tier_id"]
    search_fields = ["actor", "subject", "reason", "tier_id", "member_id"]
    date_hierarchy = "at"
    show_full_result_count = False
    fields = ["at", "actor", "through", "did", "what", "reason", "ended"]

    @admin.display(description="action", ordering="action")
    def did(self, entry: AuditEntry) -> str:
        return wording.plain(entry.action)

    @admin.display(description="scope or subject", ordering="tier_id")
    def what(self, entry: AuditEntry) -> str:
        """The tier or member, and the key, snapshot or resource, that the change was made to."""
        scope = "/".join(filter(None, (entry.tier_id, entry.member_id)))
        return ", ".join(filter(None, (scope, entry.subject)))

    @admin.display(description="result", ordering="result")
    def ended(self, entry: AuditEntry) -> str:
        return wording.outcome(entry.result)


@admin.register(RouterSnapshot)
class RouterSnapshotAdmin(ReadOnlyAdmin):
    """Every capture; its page compares it with what is active and activates it."""

    change_list_template = "console/wide_list.html"
    list_display = [
        *("name", "state", "digest", "created_at", "created_by", "source"),
        *("tiers", "members"),
    ]
    list_filter = ["source", "created_by"]
    search_fields = ["config_sha256", "topology_sha256", "created_by"]
    date_hierarchy = "created_at"

    def get_queryset(self, request: HttpRequest) -> QuerySet[RouterSnapshot]:
        rows: QuerySet[RouterSnapshot] = super().get_queryset(request)
        active = ActiveSnapshot.objects.filter(snapshot=OuterRef("pk"))
        return rows.defer(*DOCUMENT_COLUMNS).annotate(active=Exists(active))

    @admin.display(description="snapshot", ordering="pk")
    def name(self, row: RouterSnapshot) -> str:
        return format_html('<span class="nowrap">Snapshot {}</span>', row.pk)

    @admin.display(description="tiers", ordering="tier_count")
    def tiers(self, row: RouterSnapshot) -> int:
        return row.tier_count

    @admin.display(description="members", ordering="replica_member_count")
    def members(self, row: RouterSnapshot) -> int:
        return row.replica_member_count

    @admin.display(description="digest", ordering="config_sha256")
    def digest(self, row: RouterSnapshot) -> str:
        return format_html('<code title="{}">{}…</code>', row.config_sha256, row.config_sha256[:16])

    @admin.display(description="state", ordering="active")
    def state(self, row: Any) -> str:
        return render_to_string("console/_badge.html", badge("active")) if row.active else "stored"

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        """The page of the capture in the console; whoever may not look is told there."""
        if not object_id.isdecimal():
            raise Http404
        return redirect("console:snapshot", int(object_id))
