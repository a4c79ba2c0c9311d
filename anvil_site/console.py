"""The console's admin site: the stock one under its own name, its models in the order of the work."""

from typing import Any, Final

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from anvil_site.login import LoginForm

SECTIONS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    (
        "working-copy",
        "Working copy",
        (
            "routing.Tier",
            "routing.ReplicaMember",
            "routing.ModelRoute",
            "routing.RouterSettings",
            "routing.PurposeModel",
            "routing.AudioRoute",
            "routing.Host",
            "routing.Resource",
            "routing.GpuRole",
        ),
    ),
    ("serving", "Serving", ("routing.RouterSnapshot", "admission.AdmissionIntent", "routing.ApiKey")),
    ("evidence", "Evidence", ("telemetry.DecisionEntry", "routing.AuditEntry")),
    ("people", "People", ("auth.User", "auth.Group")),
)
"""Slug, heading and models of each block of the index; other models follow under their apps."""


class ConsoleSite(AdminSite):
    """See the module."""

    site_header = "Anvil"
    site_title = "Anvil"
    index_title = "Everything that can be looked at and edited"
    site_url = None
    login_form = LoginForm

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        answer = super().login(request, extra_context)
        if isinstance(answer, TemplateResponse) and answer.context_data is not None:
            form = answer.context_data.get("form")
            if isinstance(form, LoginForm) and form.has_error("__all__", "too_many_attempts"):
                answer.status_code = 429
        return answer

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """The models that this user may see, by section. One app's own page keeps its list."""
        apps = super().get_app_list(request, app_label)
        if app_label is not None:
            return apps
        entries = {
            f"{app['app_label']}.{model['object_name']}": model for app in apps for model in app["models"]
        }
        sections = []
        placed: set[str] = set()
        for slug, heading, names in SECTIONS:
            models = [entries[name] for name in names if name in entries]
            placed.update(names)
            if models:
                sections.append(
                    {
                        "name": heading,
                        "app_label": slug,
                        "app_url": models[0]["admin_url"] or "",
                        "has_module_perms": True,
                        "models": models,
                    }
                )
        for app in apps:
            rest = [
                model for model in app["models"] if f"{app['app_label']}.{model['object_name']}" not in placed
            ]
            if rest:
                sections.append({**app, "models": rest})
        return sections
