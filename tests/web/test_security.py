"""What keeps strangers out of the console and the REST part: policy, cookies, CSRF, errors, files, checks."""

import ast
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.core import checks
from django.core.checks import CheckMessage
from django.test import Client, override_settings
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from anvil_site import checks as own_checks
from routing.models import ApiKey, AuditEntry
from tests.web.console_support import admin
from tests.web.control_support import KEYS, TRANSITION, Control

pytestmark = [pytest.mark.django_db, pytest.mark.requirement("contract 2 authentication")]

ROOT = Path(__file__).resolve().parents[2]
POLICY = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "font-src 'self'",
    "connect-src 'self'",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    "object-src 'none'",
}
PAGES = ("console:fleet", "admin:index", "admin:login", "api-docs")


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_the_policy_and_may_not_be_framed(control: Control, page: str) -> None:
    client = Client() if page == "admin:login" else admin()

    answer = client.get(reverse(page))

    assert answer.status_code == 200
    assert {part.strip() for part in answer["Content-Security-Policy"].split(";")} == POLICY
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Referrer-Policy"] == "same-origin"


def test_templates_hold_no_script_style_or_handler_of_their_own() -> None:
    """Whatever the policy would block in a browser is found here without one."""
    for path in (ROOT / "templates").rglob("*.html"):
        text = path.read_text()
        for word in (
            " style=",
            "<style",
            " onclick=",
            " onload=",
            " onchange=",
            "javascript:",
            "hx-on",
            "js:",
        ):
            assert word not in text, f"{path.name}: {word}"
        for tag in text.split("<script")[1:]:
            assert "src=" in tag.partition(">")[0], path.name


def test_the_page_of_the_api_loads_nothing_from_elsewhere(control: Control) -> None:
    page = admin().get(reverse("api-docs")).content.decode()

    sources = [part.partition('"')[0] for part in (page + " ").replace("href=", "src=").split('src="')[1:]]
    assert len(sources) == 4
    assert all(source.startswith("/static/") for source in sources)
    for source in sources:
        assert finders.find(source.removeprefix("/static/")), source


def test_pages_about_the_api_ask_who_is_there(control: Control) -> None:
    assert Client().get("/api/docs/").headers["Location"] == "/admin/login/?next=/api/docs/"
    assert control.request("GET", "/api/schema/", token="wrong").status == 401
    secret = control.request("POST", KEYS, {"name": "chat", "scopes": ["infer"]}).json["key"]
    assert control.request("GET", "/api/schema/", token=secret).status == 403
    assert control.request("GET", "/api/schema/").status == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/schema/", 200),
        ("/api/schema/?format=yaml", 400),
        ("/v1/stats?format=xml", 400),
        ("/v1/nope", 404),
    ],
)
def test_no_answer_to_a_program_is_stored_and_no_parameter_is_unknown(
    control: Control, path: str, status: int
) -> None:
    """The framework's own ``format`` once chose a renderer, or answered that there is nothing at the path."""
    answer = control.request("GET", path)
    assert (answer.status, answer.headers["cache-control"]) == (status, "no-store")


def mutations(resolver: URLResolver | None = None, prefix: str = "/") -> list[tuple[str, Any]]:
    """Path and view of everything below the site."""
    found = []
    for entry in (resolver or get_resolver()).url_patterns:
        path = prefix + str(entry.pattern)
        if isinstance(entry, URLPattern):
            found.append((path, entry.callback))
        else:
            found += mutations(entry, path)
    return found


def test_only_the_rest_part_is_exempt_from_csrf(control: Control) -> None:
    """It takes no cookie, so that a foreign page has nothing to ride on."""
    exempt = {path for path, view in mutations() if getattr(view, "csrf_exempt", False)}
    assert exempt
    assert all(path.startswith(("/v1/", "/^v1/", "/metrics", "/api/")) for path in exempt), exempt
    # A session does not open the REST part.
    assert admin().get(TRANSITION).status_code == 401


def test_a_post_without_its_token_is_refused_everywhere_in_the_console(control: Control) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root", password="a-password-of-tests"))
    before = control.facts()
    paths = [path for path, _ in mutations() if path.startswith(("/fleet", "/admin/", "/configuration"))]
    tried = 0
    for path in paths:
        if "<" in path or "(" in path:
            path = (
                path.replace("<path:object_id>", "1")
                .replace("<int:pk>", "1")
                .replace("<int:snapshot_id>", "1")
            )
            if "<" in path or "(" in path:
                continue
        answer = client.post(path, {"scope": "solo"})
        assert answer.status_code in (302, 403, 404, 405), path
        tried += answer.status_code == 403
    assert tried > 20
    assert control.facts() == before


# Failures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/router/status", "/metrics"])
def test_a_view_that_fails_is_answered_as_json_without_a_word_of_why(
    control: Control, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise RuntimeError("http://secret.example/v1 sk-secret")

    monkeypatch.setattr("telemetry.api.build_status", fail)
    monkeypatch.setattr("telemetry.process.exporter", fail)
    client = Client(raise_request_exception=False)

    answer = client.get(path, HTTP_AUTHORIZATION=f"Bearer {control.token}")

    assert (answer.status_code, answer["Content-Type"], answer["Cache-Control"]) == (
        500,
        "application/json",
        "no-store",
    )
    assert json.loads(answer.content) == {
        "error": {
            "message": "The request could not be served.",
            "type": "server_error",
            "param": None,
            "code": "internal_error",
        }
    }


def test_a_strange_host_is_refused_by_what_takes_cookies_and_in_one_line(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    """Without authentication a name that a foreign page has pointed at this machine opens nothing, either."""
    stranger = Client(headers={"host": "evil.example"})
    with override_settings(ANVIL_AUTH=False):
        answers = [stranger.get("/v1/router/status"), stranger.get("/metrics")]
    for answer in (*answers, stranger.get("/api/schema/")):
        assert (answer.status_code, answer["Content-Type"]) == (400, "application/json")
        assert json.loads(answer.content)["error"]["code"] == "invalid_request"
    page = stranger.get("/admin/login/")
    assert (page.status_code, page["Content-Type"]) == (400, "text/html; charset=utf-8")
    assert b"evil" not in page.content
    for record in caplog.records:
        assert record.exc_info is None, "a stranger makes the log as long as it likes"


# Secrets --------------------------------------------------------------------------------------------------


def test_a_key_is_nowhere_after_the_answer_that_made_it(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    made = control.request("POST", KEYS, {"name": "chat", "scopes": ["infer", "operate"]})
    secret = made.json["key"]
    control.request("GET", TRANSITION, token=secret)
    control.request("GET", "/v1/router/status", token=secret)
    control.request("GET", TRANSITION, token=secret + "x")

    row = ApiKey.objects.get()
    key = next(key for key in control.router.ring._by_digest.values() if key.name == "chat")
    audit = [str(vars(entry)) for entry in AuditEntry.objects.all()]
    client = admin()
    pages = [
        client.get(reverse(name, args=arguments)).content.decode()
        for name, arguments in (
            ("admin:routing_apikey_changelist", ()),
            ("admin:routing_apikey_change", (row.pk,)),
            ("admin:routing_apikey_history", (row.pk,)),
            ("admin:routing_auditentry_changelist", ()),
        )
    ]
    for text in (caplog.text, repr(key), repr(row), str(vars(row)), *audit, *pages):
        assert secret not in text
        assert control.token not in text
    assert row.digest not in repr(key)


def test_what_holds_secrets_does_not_show_them(control: Control) -> None:
    """``repr`` is what a crash report or a debugger's log writes."""
    active = control.router.active
    assert active is not None
    for member in control.router.gateway._routes["llm.chat"].members.values():
        assert "Host:" not in repr(member)
    assert "base_url" not in repr(active.snapshot)


# Callers reach no upstream of their own choice ------------------------------------------------------------


def test_no_module_of_the_request_path_takes_a_url_or_follows_one() -> None:
    """SSRF: endpoints are made from the configuration alone, and nothing on the path is a client that follows
    redirects or reads proxies from the environment."""
    makers = set()
    for path in [*(ROOT / "routing").rglob("*.py"), *(ROOT / "telemetry").rglob("*.py")]:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == "from_url":
                makers.add(path.relative_to(ROOT).as_posix())
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                assert not {"urllib.request", "requests", "httpx"} & set(names), path
    assert makers == {"routing/passage.py"}


# Files ----------------------------------------------------------------------------------------------------


def test_whatever_is_written_into_the_data_directory_is_its_owners_alone(tmp_path: Path) -> None:
    """A wide umask, and a directory that somebody made before."""
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    environ = {**os.environ, "ANVIL_DATA": str(data), "DJANGO_SETTINGS_MODULE": "anvil_site.settings"}
    environ.pop("DATABASE_URL", None)
    command = ["migrate", "--verbosity", "0"]
    subprocess.run(
        [sys.executable, "manage.py", *command], cwd=ROOT, env=environ, check=True, umask=0, timeout=120
    )

    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in data.iterdir()}
    assert modes["anvil.sqlite3"] == modes["secret_key"] == "0o600"
    assert set(modes.values()) == {"0o600"}


# System checks --------------------------------------------------------------------------------------------


def ids(messages: list[CheckMessage]) -> list[str | None]:
    return [message.id for message in messages]


def test_a_loopback_bind_has_nothing_to_say() -> None:
    with override_settings(ANVIL_BIND="127.0.0.1:8000", ANVIL_AUTH=False, DEBUG=True):
        assert own_checks.reachability(None) == []


def test_a_public_bind_without_authentication_is_an_error() -> None:
    with override_settings(ANVIL_BIND="0.0.0.0:8000", ANVIL_AUTH=False, SESSION_COOKIE_SECURE=True,
                           CSRF_COOKIE_SECURE=True, DEBUG=False):  # fmt: skip
        (message,) = own_checks.reachability(None)
    assert (message.id, message.level) == ("anvil.E001", checks.ERROR)


def test_a_public_bind_with_plain_cookies_debugging_and_any_host_is_warned_of() -> None:
    with override_settings(ANVIL_BIND="10.0.0.1:8000", ANVIL_AUTH=True, SESSION_COOKIE_SECURE=False,
                           DEBUG=True, ALLOWED_HOSTS=["*"]):  # fmt: skip
        assert ids(own_checks.reachability(None)) == ["anvil.W002", "anvil.W004", "anvil.W005"]


def test_an_exposed_data_directory_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "anvil.sqlite3").touch()
    (tmp_path / "anvil.sqlite3").chmod(0o644)
    (tmp_path / "secret_key").touch(0o600)
    with override_settings(ANVIL_DATA=tmp_path):
        tmp_path.chmod(0o700)
        assert own_checks.data_directory(None) == []
        tmp_path.chmod(0o755)
        (message,) = own_checks.data_directory(None)
    assert message.id == "anvil.W003"
    assert message.msg == "Others can get at the data directory: ., anvil.sqlite3."


def test_unset_secrets_of_the_first_documents_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "router.toml"
    document.write_text(
        '[server]\nauth_env = "ANVIL_TOKEN"\n[router.model_routes]\n"a" = "t"\n[[router.tiers]]\nid = "t"\n'
        'base_url = "http://127.0.0.1:1/v1"\ncontext_limit = 10\nmodel = "m"\nauth_env = "UPSTREAM_TOKEN"\n'
    )
    monkeypatch.setenv("ANVIL_TOKEN", "set")
    monkeypatch.delenv("UPSTREAM_TOKEN", raising=False)
    with override_settings(ANVIL_CONFIG=document):
        (message,) = own_checks.secrets_of_the_first_start(None)
        assert message.id == "anvil.W001"
        assert "router.tiers[0].auth_env" in message.msg
        assert "UPSTREAM_TOKEN" not in message.msg
        document.write_text("nothing")
        assert own_checks.secrets_of_the_first_start(None) == []


def test_the_deployment_checks_are_clean_for_an_address_that_others_can_reach(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "ANVIL_DATA": str(tmp_path / "data"),
        "ANVIL_BIND": "0.0.0.0:8000",
        "ANVIL_ALLOWED_HOSTS": "anvil.example",
        "ANVIL_TRUSTED_ORIGINS": "https://anvil.example",
    }
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_post_to_nowhere_below_v1_is_json_and_not_a_page_about_cookies() -> None:
    """Found by random requests against the schema."""
    answer = Client(enforce_csrf_checks=True).post("/v1/admin/keys/none", {})
    assert (answer.status_code, answer["Content-Type"]) == (404, "application/json")
