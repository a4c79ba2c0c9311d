"""Stored quiesce intents in the admin, and the base of everything there that is only read."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.text import capfirst

from admission.models import AdmissionIntent

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    # Not generic at run time.
    ModelAdmin = admin.ModelAdmin


class ReadOnlyAdmin(ModelAdmin):
    """A list and a page of each row; nobody adds, changes or deletes one here."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Under the name of what is listed: there is nothing to select it for."""
        title = capfirst(str(self.opts.verbose_name_plural))
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(AdmissionIntent)
class AdmissionIntentAdmin(ReadOnlyAdmin):
    """What stays quiesced over a restart; rows follow what is done to the ledger."""

    list_display = ["tier_id", "member_id", "reason", "actor", "since"]
    list_filter = ["tier_id", "reason"]
    search_fields = ["tier_id", "member_id", "reason", "actor"]
