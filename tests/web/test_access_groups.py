"""The groups Viewer and Operator: made by a migration, their rights following the models."""

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, Permission

from routing.permissions import ACTIVATE_SNAPSHOT, OPERATE_TIER, ROOMS, grant

pytestmark = [pytest.mark.django_db, pytest.mark.requirement("contract 2 authentication", "console")]


def rights(group: str) -> set[str]:
    permissions = Group.objects.get(name=group).permissions.select_related("content_type")
    return {f"{it.content_type.app_label}.{it.codename}" for it in permissions}


def views() -> set[str]:
    return {
        f"{model._meta.app_label}.view_{model._meta.model_name}"
        for label in ROOMS
        for model in apps.get_app_config(label).get_models()
    }


def test_a_viewer_may_see_every_model_of_ours_and_do_nothing() -> None:
    assert rights("Viewer") == views()


def test_an_operator_may_act_besides() -> None:
    assert rights("Operator") == views() | {OPERATE_TIER, ACTIVATE_SNAPSHOT}
    assert {OPERATE_TIER, ACTIVATE_SNAPSHOT} == {"admission.operate_tier", "routing.activate_snapshot"}


def test_a_right_that_somebody_added_is_left_alone() -> None:
    extra = Permission.objects.get(codename="add_apikey")
    Group.objects.get(name="Operator").permissions.add(extra)
    grant(apps.get_app_config("routing"))
    assert "routing.add_apikey" in rights("Operator")


def test_a_group_that_somebody_removed_stays_away() -> None:
    Group.objects.get(name="Viewer").delete()
    grant(apps.get_app_config("routing"))
    assert not Group.objects.filter(name="Viewer").exists()


def test_other_apps_are_none_of_its_business() -> None:
    grant(apps.get_app_config("auth"))
    assert "auth.view_user" not in rights("Viewer")
