"""Debian's Chromium over a real router: people who log in, pages that watch themselves, kept pictures.

Every page collects what goes wrong in it: errors and warnings of the console, exceptions, answers of 400 and
more. A test that provokes one says so (`Watched.expect`); any other fails it at its end.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.live.conftest import connect, engine, make_engine, make_router, pytest_runtest_makereport
from tests.live.harness import ROOT, Router

__all__ = ["connect", "engine", "make_engine", "make_router", "pytest_runtest_makereport"]

CHROMIUM = shutil.which("chromium")
PICTURES = ROOT / "var" / "browser"
PASSWORD = "a-password-of-tests"

expect.set_options(timeout=10_000)

_PEOPLE = f"""
from django.contrib.auth.models import Group, User
for name, group in (("root", None), ("ada", "Operator"), ("vic", "Viewer")):
    user = User.objects.create_user(name, password={PASSWORD!r}, is_staff=True, is_superuser=group is None)
    if group:
        user.groups.add(Group.objects.get(name=group))
"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, once for all tests. Without one they are skipped; continuous integration has to have it."""
    if CHROMIUM is None:
        if os.environ.get("CI") == "true":
            pytest.fail("chromium is not installed")
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield launched
        launched.close()


class Watched:
    """A browser window of one person, and what went wrong in its pages."""

    def __init__(self, context: BrowserContext, router: Router) -> None:
        self.router = router
        self.context = context
        self.problems: list[str] = []
        self._expected: list[str] = []
        context.set_default_timeout(10_000)
        self.page: Page = context.new_page()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        self.page.on("response", self._on_response)

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _on_response(self, response: Any) -> None:
        if response.status >= 400:
            self.problems.append(f"answer: {response.status} {response.url}")

    def expect_problem(self, *parts: str) -> None:
        """Problems with any of these texts are what the test is about."""
        self._expected += parts

    def unexpected(self) -> list[str]:
        return [problem for problem in self.problems if not any(part in problem for part in self._expected)]

    def goto(self, path: str) -> None:
        self.page.goto(f"{self.router.url}{path}")

    def log_in(self, name: str) -> None:
        """Through the form, as a person does."""
        self.goto("/fleet/")
        self.page.get_by_label("Username").fill(name)
        self.page.get_by_label("Password").fill(PASSWORD)
        self.page.get_by_role("button", name="Log in").click()
        expect(self.page).to_have_url(f"{self.router.url}/fleet/")

    def keep_picture(self, name: str) -> None:
        """A picture of the whole page, kept beside the other results of the run."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


@pytest.fixture
def open_window(browser: Browser) -> Iterator[Callable[..., Watched]]:
    """``open_window(router, "ada", ...)``: a window with that person logged in; options are Playwright's."""
    windows: list[Watched] = []

    def open_one(router: Router, name: str | None = None, **options: Any) -> Watched:
        window = Watched(
            browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options}), router
        )
        windows.append(window)
        if name is not None:
            window.log_in(name)
        return window

    yield open_one
    problems = [problem for window in windows for problem in window.unexpected()]
    for window in windows:
        window.context.close()
    assert problems == []


@pytest.fixture
def start(make_router: Callable[..., Router]) -> Callable[..., Router]:
    """``start(documents)``: a router that serves, with root, ada the operator and vic the viewer.

    Without documents it has nothing to serve and is never ready, so only its health is waited for.
    """

    def start_one(*arguments: Any, **options: Any) -> Router:
        from tests.live.harness import eventually, request

        router = make_router(*arguments, **options).start(wait=bool(arguments))

        def healthy() -> bool:
            try:
                return request(router.port, "GET", "/healthz").status == 200
            except OSError:
                return False

        eventually(healthy, timeout=60.0, interval=0.05)
        subprocess.run(
            [sys.executable, "manage.py", "shell", "--no-imports", "-c", _PEOPLE],
            cwd=ROOT,
            env=router._environ,
            check=True,
            timeout=60,
            stdout=subprocess.DEVNULL,
        )
        return router

    return start_one


@pytest.fixture
def documents_dir(tmp_path: Path) -> Path:
    """Where files to upload are written."""
    made = tmp_path / "documents"
    made.mkdir()
    return made
