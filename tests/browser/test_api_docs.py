"""The page of the API in a real browser, under the console's policy."""

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Watched
from tests.live.harness import Engine, Router, direct_tier, documents

pytestmark = pytest.mark.requirement("contract 2 wire")


def test_the_schema_is_shown_without_a_word_from_elsewhere(
    start: Callable[..., Router], open_window: Callable[..., Watched], engine: Engine
) -> None:
    router = start(documents(direct_tier(engine)))
    window = open_window(router, "vic")
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url))

    window.goto("/api/docs/")

    operation = window.page.get_by_role("button", name="POST /v1/admin/transition Status")
    expect(operation).to_be_visible(timeout=30_000)
    operation.click()
    expect(window.page.get_by_text("TransitionOrder").first).to_be_visible()
    window.keep_picture("api-docs")
    assert asked
    assert all(url.startswith((router.url, "data:", "blob:")) for url in asked), asked
