"""``/api/schema/`` and ``/api/docs/``: the REST part in OpenAPI, for keys with scope observe and for people.

The page loads nothing from elsewhere and has no script of its own inside: the console's policy covers it.
"""

from typing import Any

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiJsonRenderer2, OpenApiYamlRenderer
from rest_framework import exceptions
from rest_framework.authentication import SessionAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.renderers import TemplateHTMLRenderer
from rest_framework.request import Request
from rest_framework.response import Response

import routing.openapi
import telemetry.openapi
from routing.access import Principal, Scope
from routing.api import ManagementView
from routing.authentication import BearerAuthentication


class MayObserve(BasePermission):
    """A key with scope observe, or somebody of the staff who is logged in at the console."""

    def has_permission(self, request: Request, view: object) -> bool:
        user = request.user
        if isinstance(user, Principal):
            return user.may(Scope.OBSERVE)
        if user is None:
            raise exceptions.NotAuthenticated
        return bool(user.is_active and user.is_staff)


class _View(ManagementView):
    authentication_classes = (BearerAuthentication, SessionAuthentication)
    permission_classes = (MayObserve,)
    schema = None


class SchemaView(_View):
    """``GET /api/schema/``: as JSON, or as YAML for who accepts that."""

    renderer_classes = (OpenApiJsonRenderer, OpenApiJsonRenderer2, OpenApiYamlRenderer)

    def get(self, request: Request) -> Response:
        return Response(SchemaGenerator().get_schema(request=request, public=True))  # type: ignore[no-untyped-call]


class DocsView(_View):
    """``GET /api/docs/``: the schema to read and to try."""

    renderer_classes = (TemplateHTMLRenderer,)

    def get(self, request: Request) -> Response:
        return Response({}, template_name="anvil/api_docs.html")

    def handle_exception(self, exc: Exception) -> Any:
        if isinstance(exc, exceptions.NotAuthenticated):
            return redirect_to_login(self.request.get_full_path(), settings.LOGIN_URL)
        return super().handle_exception(exc)


def add_components(result: dict[str, Any], **context: object) -> dict[str, Any]:
    """Put the shapes that operations refer to beside the generated ones."""
    shapes = result.setdefault("components", {}).setdefault("schemas", {})
    shapes.update(routing.openapi.COMPONENTS)
    shapes.update(telemetry.openapi.COMPONENTS)
    return result
