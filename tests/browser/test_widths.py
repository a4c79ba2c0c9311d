"""Every page at the width of a phone, with the longest names that the grammars allow."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Watched
from tests.browser.test_configuring import upload
from tests.live.harness import Documents, Engine, Router, direct_tier, documents, eventually, replica_tier

LONG_TIER = "t" * 55
"""With a member's name behind it, it is a resource id of 64 characters."""
LONG_ALIAS = "live." + "a" * 123
LONG_REASON = "r" * 128


def over(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    found: int = page.evaluate(
        "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"
    )
    return found


@pytest.mark.parametrize("width", [390, 800])
def test_no_page_scrolls_sideways(
    make_engine: Callable[..., Engine],
    start: Callable[..., Router],
    open_window: Callable[..., Watched],
    documents_dir: Path,
    width: int,
) -> None:
    engines = [make_engine(name) for name in ("engine-a", "engine-b", "engine-direct")]
    replicas = replica_tier(engines[:2], tier_id=LONG_TIER, alias=LONG_ALIAS)
    router = start(documents(replicas, direct_tier(engines[2])))
    for alias in (LONG_ALIAS, "live.direct"):
        assert router.chat(alias).status == 200
    router.request(
        "POST",
        "/v1/admin/transition",
        body={
            "action": "quiesce",
            "tier_id": LONG_TIER,
            "member_id": "member-b",
            "reason": LONG_REASON,
            "confirm": True,
            "dry_run": False,
        },
    )
    eventually(lambda: router.request("GET", "/v1/decisions?limit=10").json()["count"] == 2)
    window = open_window(router, viewport={"width": width, "height": 844})
    page = window.page
    window.goto("/fleet/")
    wide = {"log-in": over(page)}
    window.log_in("root")
    scope = f"{LONG_TIER}/member-b"

    def look(name: str) -> None:
        wide[name] = over(page)
        if wide[name] > 0:
            window.keep_picture(f"too-wide-{width}-{len(wide)}")

    # A document with faults, and one that differs, so that there is something to compare and to activate.
    window.goto("/configuration/import/")
    changed = documents(replicas, direct_tier(engines[2], max_concurrency=5, quantization="q" * 64))
    broken = Documents(config=changed.config.replace(b"= 5", b"= 0"), topology=changed.topology)
    upload(page, documents_dir, broken)
    look("faults")
    upload(page, documents_dir, changed)
    look("difference")
    window.goto("/configuration/snapshots/1/")
    page.get_by_role("button", name="Load into the working copy").click()
    expect(page.get_by_text("same as what is active")).to_be_visible()

    for path in (
        "/fleet/",
        f"/fleet/scopes/?scope={LONG_TIER}",
        f"/fleet/scopes/?scope={scope}",
        f"/fleet/quiesce/?scope={LONG_TIER}",
        f"/fleet/quiesce/?scope={LONG_TIER}&scope={scope}&scope=direct",
        f"/fleet/drain/?scope={scope}",
        f"/fleet/readmit/?scope={scope}",
        "/fleet/guide/",
        "/fleet/runbook/",
        "/configuration/",
        "/configuration/import/",
        "/configuration/publish/",
        "/configuration/promotions/",
        "/configuration/snapshots/1/",
        "/configuration/snapshots/2/",
        f"/explain/?model={LONG_ALIAS}",
        f"/explain/?model={'x' * 128}",
        "/explain/?request_id=unknown-one",
        "/admin/",
        "/admin/telemetry/decisionentry/",
        "/admin/telemetry/decisionentry/1/change/",
        "/admin/telemetry/decisionentry/2/change/",
        "/admin/routing/auditentry/",
        "/admin/routing/auditentry/1/change/",
        "/admin/routing/routersnapshot/",
        "/admin/routing/apikey/",
        "/admin/routing/apikey/add/",
        "/admin/routing/tier/",
        "/admin/routing/tier/add/",
        "/admin/routing/tier/1/change/",
        "/admin/routing/replicamember/",
        "/admin/routing/replicamember/1/change/",
        "/admin/routing/modelroute/",
        "/admin/routing/routersettings/1/change/",
        "/admin/admission/admissionintent/",
        "/admin/admission/admissionintent/1/change/",
        "/admin/password_change/",
    ):
        answer = page.goto(f"{router.url}{path}")
        assert answer is not None
        assert answer.status == 200, path
        look(path)

    # Dialogs are as narrow.
    window.goto("/fleet/")
    page.get_by_role("link", name=f"Readmit {scope}").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    look("dialog")
    dialog = page.locator("#dialog")
    assert dialog.evaluate("(box) => box.scrollWidth - box.clientWidth") <= 0
    assert {name: pixels for name, pixels in wide.items() if pixels > 0} == {}
