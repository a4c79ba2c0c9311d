"""A tier is moved to another GPU from a real browser, and its journal is read there."""

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Watched
from tests.live.harness import Documents, Engine, Router, direct_tier, documents
from tests.live.test_activation import chats


@pytest.mark.requirement("contract 5 promote")
def test_an_operator_moves_a_tier_and_sees_one_come_back_by_itself(
    make_engine: Callable[..., Engine],
    start: Callable[..., Router],
    open_window: Callable[..., Watched],
) -> None:
    old, new, wrong = (make_engine(name) for name in ("old", "new", "wrong"))
    wrong.fault("wrong_model")
    made = documents(direct_tier(old, tier_id="solo", alias="live.solo"))
    resources = "".join(
        f'\n[[resources]]\nid = "{name}"\nhost = "live-host"\nrole = "llm"\nendpoint = "{engine.url}"\n'
        for name, engine in (("gpu-new", new), ("gpu-wrong", wrong))
    )
    router = start(Documents(config=made.config, topology=made.topology + resources.encode()))
    window = open_window(router, "ada")
    page = window.page
    window.goto("/configuration/")
    page.get_by_role("link", name="Promotions").click()
    for resource, outcome in (("gpu-new", "promoted"), ("gpu-wrong", "rolled back")):
        page.get_by_label("Resource").select_option(resource)
        page.get_by_role("button", name="See what it does").click()
        expect(page.get_by_text("Other tiers and their running requests do not notice.")).to_be_visible()
        page.get_by_role("button", name="Promote now").click()
        card = page.get_by_role("region", name=f"solo to {resource}")
        expect(card.get_by_text(outcome, exact=True)).to_be_visible()
        expect(card.get_by_text("verify", exact=False)).to_be_visible()
        window.keep_picture(f"promoted-{resource}")
    first = page.get_by_role("region", name="solo to gpu-new")
    expect(first.get_by_text("it is healthy and serves the expected model")).to_be_visible()
    assert router.chat("live.solo").status == 200
    assert (chats(old), chats(new), chats(wrong)) == (0, 1, 0)
