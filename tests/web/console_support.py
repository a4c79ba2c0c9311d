"""People at the console: an administrator, an operator, a viewer and somebody with no rights, logged in."""

from django.apps import apps
from django.contrib.auth.models import Group, User
from django.test import Client

from routing.permissions import OPERATOR, ROOMS, VIEWER, grant

HTMX = {"HTTP_HX_REQUEST": "true"}
"""Headers of a request by htmx."""


def person(name: str, *groups: str, superuser: bool = False, enforce_csrf: bool = False) -> Client:
    """A logged-in member of the staff."""
    user = User.objects.create_user(name, password="a-password-of-tests", is_staff=True)
    user.is_superuser = superuser
    user.save()
    # A test that commits leaves an empty database behind, without what the migrations had put there.
    user.groups.set(Group.objects.get_or_create(name=group)[0] for group in groups)
    for room in ROOMS:
        grant(apps.get_app_config(room))
    client = Client(enforce_csrf_checks=enforce_csrf)
    client.force_login(user)
    return client


def admin(name: str = "root") -> Client:
    return person(name, superuser=True)


def operator(name: str = "ada") -> Client:
    return person(name, OPERATOR)


def viewer(name: str = "vic") -> Client:
    return person(name, VIEWER)


def text_of(response: object) -> str:
    """A page as text with runs of white space made one."""
    return " ".join(response.content.decode().split())  # type: ignore[attr-defined]
