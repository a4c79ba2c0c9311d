"""The OpenAPI schema: complete, clean, and true of the answers."""

import io
import json
from typing import Any

import jsonschema
import pytest
from django.core.management import call_command
from django.urls import URLPattern, get_resolver

from admission.identifiers import is_reason_code, is_safe_id
from routing.access import Scope
from routing.openapi import COMPONENTS
from tests.web.control_support import INTENT, KEYS, TRANSITION, Control
from tests.web.test_security import mutations

pytestmark = pytest.mark.requirement("contract 2 wire")

METHODS = {"get", "post", "put", "delete"}


@pytest.fixture(scope="module")
def schema() -> Any:
    out = io.StringIO()
    call_command("spectacular", "--validate", "--fail-on-warn", "--format", "openapi-json", stdout=out)
    return json.loads(out.getvalue())


def test_every_view_of_the_rest_part_is_described(schema: Any) -> None:
    assert isinstance(get_resolver().url_patterns[0], URLPattern)
    served = {
        path.replace("int:", "").replace("str:", "").replace("<", "{").replace(">", "}")
        for path, _ in mutations()
        if path.startswith(("/v1/", "/metrics"))
    } - {"/v1/^v1/", "/^v1/"}
    assert set(schema["paths"]) == {path for path in served if "^" not in path}
    for path, operations in schema["paths"].items():
        for method in operations.keys() & METHODS:
            operation = operations[method]
            assert operation["summary"], path
            assert {"401", "403", "503"} <= operation["responses"].keys(), path
            assert operation["security"] == [{"bearer": []}, {"x-api-key": []}], path


def test_every_reference_leads_somewhere(schema: Any) -> None:
    wanted = {part.partition('"')[0] for part in json.dumps(schema).split('"#/components/schemas/')[1:]}
    assert wanted <= schema["components"]["schemas"].keys()


@pytest.mark.parametrize("name", ["a", "member-a", "9a", "", "a" * 64, "a" * 65, "a b", "a\n", "ä"])
def test_the_grammars_are_those_of_the_router(name: str) -> None:
    order = {"action": "drain", "tier_id": name, "reason": name}
    validator = jsonschema.Draft202012Validator(COMPONENTS["TransitionOrder"])
    wrong = {error.path[0] for error in validator.iter_errors(order)}
    # JSON Schema's "$" lets a last line feed pass; the router does not.
    if not name.endswith("\n"):
        assert ("tier_id" not in wrong) == is_safe_id(name)
        assert ("reason" not in wrong) == is_reason_code(name)


def conform(schema: Any, method: str, path: str, status: int, body: Any) -> None:
    answers = schema["paths"][path][method.lower()]["responses"]
    shape = answers[str(status)]["content"]["application/json"]["schema"]
    document = {**shape, "components": schema["components"]}
    jsonschema.Draft202012Validator(document).validate(body)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "path",
    [
        TRANSITION,
        INTENT,
        KEYS,
        "/v1/admin/snapshots",
        "/v1/admin/promotions",
        "/v1/decisions",
        "/v1/stats",
        "/v1/models/capacity",
        "/v1/models/capabilities",
        "/v1/models/fingerprints",
        "/v1/health/tiers",
        "/v1/router/status",
    ],
)
def test_what_is_read_is_of_its_shape(control: Control, schema: Any, path: str) -> None:
    answer = control.request("GET", path)
    assert answer.status == 200
    conform(schema, "GET", path, 200, answer.json)


@pytest.mark.django_db(transaction=True)
def test_what_is_done_is_of_its_shape(control: Control, schema: Any) -> None:
    for action, scope in (
        ("status", ()),
        ("quiesce", ("chat",)),
        ("quiesce", ("chat", "member-a")),
        ("drain", ("chat",)),
        ("drain", ("chat", "member-a")),
        ("readmit", ("chat", "member-a")),
        ("readmit", ("chat",)),
        ("readmit", ("solo",)),
        ("quiesce", ("nothing",)),
    ):
        body = dict(zip(("tier_id", "member_id"), scope, strict=False))
        for dry_run in (True, False):
            answer = control.transition(action=action, confirm=True, dry_run=dry_run, **body)
            conform(schema, "POST", TRANSITION, answer.status, answer.json)
    made = control.request("POST", KEYS, {"name": "chat", "scopes": [Scope.INFER]})
    conform(schema, "POST", KEYS, 201, made.json)
    conform(
        schema, "POST", KEYS, 409, control.request("POST", KEYS, {"name": "chat", "scopes": ["infer"]}).json
    )
    revoked = control.request("DELETE", f"{KEYS}/{made.json['id']}")
    conform(schema, "DELETE", KEYS + "/{key_id}", 200, revoked.json)
    explained = control.request("GET", "/v1/admin/explain?model=llm.chat")
    conform(schema, "GET", "/v1/admin/explain", 200, explained.json)
