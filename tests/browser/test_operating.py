"""The operator's work in a real browser: live fleet, quiesce, drain, readmit, audit."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Watched
from tests.live.harness import Engine, Router, direct_tier, documents, eventually, replica_tier

Start = Callable[..., Router]
OpenWindow = Callable[..., Watched]


@pytest.fixture
def fleet(make_engine: Callable[..., Engine], start: Start) -> tuple[Router, list[Engine]]:
    """Two members behind ``live.chat`` and an engine on its own."""
    engines = [make_engine(name) for name in ("engine-a", "engine-b", "engine-direct")]
    return start(documents(replica_tier(engines[:2]), direct_tier(engines[2]))), engines


class Stream:
    """A streamed answer, read as far as its first event; then its caller leaves, or reads the rest."""

    def __init__(self, router: Router, alias: str) -> None:
        self._client = router.client(timeout=60.0)
        messages: Any = [{"role": "user", "content": "hi"}]
        self._events = self._client.chat.completions.create(model=alias, messages=messages, stream=True)
        next(self._events)

    def leave(self) -> None:
        self._client.close()

    def end(self) -> str | None:
        """Read to the end, which must be an orderly one; why the model stopped."""
        reasons = [chunk.choices[0].finish_reason for chunk in self._events if chunk.choices]
        self._client.close()
        return reasons[-1]


def row(page: Page, member: str) -> Any:
    return page.locator(f"#row-chat\\.{member}")


def test_an_operators_night(
    fleet: tuple[Router, list[Engine]], open_window: OpenWindow, make_engine: Callable[..., Engine]
) -> None:
    """See it live, take a member out while it streams, watch the drain, bring it back, find the entry."""
    router, (first, _, _) = fleet
    window = open_window(router, "ada")
    page = window.page
    expect(row(page, "member-a").get_by_text("admitting")).to_be_visible()
    window.keep_picture("fleet-light")

    # Two streams that stop in the middle, both on the one member that is open.
    router.request(
        "POST",
        "/v1/admin/transition",
        body={
            "action": "quiesce",
            "tier_id": "chat",
            "member_id": "member-b",
            "reason": "setting-up",
            "confirm": True,
            "dry_run": False,
        },
    )
    first.fault("stall_mid_stream")
    stays, leaves = Stream(router, "live.chat"), Stream(router, "live.chat")
    # Live: the page was loaded before any of this.
    expect(row(page, "member-a").get_by_role("img", name="2 of 2 places taken")).to_be_visible()
    expect(row(page, "member-b").get_by_text("quiesced")).to_be_visible()
    expect(page.get_by_text("Every member that is ready is at its ceiling")).to_be_visible()

    row(page, "member-a").get_by_role("link", name="Quiesce").click()
    dialog = page.get_by_role("dialog")
    expect(
        dialog.get_by_text("New requests stop at once; two running requests go on to the end.")
    ).to_be_visible()
    expect(dialog.get_by_text("No other member is ready")).to_be_visible()
    window.keep_picture("quiesce-light")
    dialog.get_by_label("Reason").fill("kernel-upgrade")
    dialog.get_by_role("button", name="Quiesce now").click()
    expect(dialog.get_by_text("Quiesced chat/member-a, reason kernel-upgrade.")).to_be_visible()
    expect(dialog.locator(".badge", has_text="draining")).to_be_visible()
    expect(
        page.get_by_text("Both members are quiesced: member-a by ada, reason kernel-upgrade")
    ).to_be_visible()

    dialog.get_by_role("link", name="Drain").click()
    expect(dialog.get_by_text("Waits until two running requests have ended.")).to_be_visible()
    dialog.get_by_role("button", name="Drain now").click()
    expect(dialog.locator(".countdown")).to_have_text("2 running requests left")
    window.keep_picture("drain-light")
    leaves.leave()
    expect(dialog.locator(".countdown")).to_have_text("1 running request left")

    # Closing does not stop it: the same countdown is there again.
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    row(page, "member-a").get_by_role("link", name="Watch the drain of chat/member-a").click()
    expect(dialog.locator(".countdown")).to_have_text("1 running request left")
    first.clear()
    expect(dialog.locator(".countdown")).to_contain_text("nothing is running here")
    assert stays.end() in ("stop", "length")

    # With another model behind it, it stays out, and the page says why.
    first.change(model="another-model")
    dialog.get_by_role("link", name="Readmit").click()
    expect(dialog.get_by_text("it opens only when demo-model is served there")).to_be_visible()
    dialog.get_by_role("button", name="Verify and readmit").click()
    expect(
        dialog.get_by_text("chat/member-a stays quiesced: it serves another model than the expected one")
    ).to_be_visible()
    window.keep_picture("readmit-refused-light")
    first.change(model="demo-model")
    dialog.get_by_role("button", name="Verify and readmit").click()
    expect(dialog.get_by_text("Readmitted chat/member-a: it was verified.")).to_be_visible()
    expect(dialog.locator("div", has=page.get_by_text("Observed model", exact=True)).last).to_contain_text(
        "demo-model"
    )
    dialog.get_by_role("link", name="Close").click()
    expect(row(page, "member-a").get_by_text("admitting")).to_be_visible()

    page.get_by_role("link", name="Audit").click()
    entries = page.locator("#result_list tbody tr")
    expect(entries.first).to_contain_text("readmit")
    expect(entries.filter(has_text="kernel-upgrade")).to_contain_text("ada")
    expect(entries.filter(has_text="drain")).to_contain_text("drained")


def test_by_keyboard_alone(fleet: tuple[Router, list[Engine]], open_window: OpenWindow) -> None:
    """Focus stays where it is over several readings, goes into the dialog and comes back out of it."""
    router, _ = fleet
    window = open_window(router, "ada")
    page = window.page
    button = page.locator("#quiesce-chat\\.member-b")
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "quiesce-chat.member-b":
            break
    expect(button).to_be_focused()
    await_readings(page, 3)
    expect(button).to_be_focused()

    page.keyboard.press("Enter")
    expect(page.get_by_label("Reason")).to_be_focused()
    page.keyboard.type("upgrade")
    await_readings(page, 2)
    expect(page.get_by_label("Reason")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(button).to_be_focused()

    page.keyboard.press("Enter")
    expect(page.get_by_label("Reason")).to_be_focused()
    expect(page.get_by_label("Reason")).to_have_value("")
    page.keyboard.type("upgrade")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Quiesced chat/member-b, reason upgrade.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(row(page, "member-b").get_by_text("upgrade, ada")).to_be_visible()
    # The button that opened it is gone: focus is on what can be done there now.
    expect(page.get_by_role("link", name="Readmit chat/member-b")).to_be_focused()
    await_readings(page, 2)
    expect(page.get_by_role("link", name="Readmit chat/member-b")).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"

    # What listens to the page is told once that something has changed, not every second that nothing has.
    told = page.locator("#fleet-told")
    expect(told).to_have_text(
        "chat: admitting, 1 of 2 members serving. direct: admitting.", use_inner_text=False
    )
    page.evaluate("""() => {
        window.changes = 0;
        const observer = new MutationObserver((all) => { window.changes += all.length; });
        const told = document.getElementById("fleet-told");
        observer.observe(told, {childList: true, characterData: true, subtree: true});
    }""")
    await_readings(page, 3)
    assert page.evaluate("window.changes") == 0
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Verify and readmit")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Verify and readmit")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Readmitted chat/member-b: it was verified.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(button).to_be_focused()
    expect(told).to_have_text("chat: admitting, 2 of 2 members serving. direct: admitting.")
    assert page.evaluate("window.changes") > 0


def await_readings(page: Page, count: int) -> None:
    """Wait until the fleet has been read that often."""
    for _ in range(count):
        with page.expect_response(lambda response: response.url.endswith("/fleet/live")):
            pass


def test_readings_disturb_nobody(fleet: tuple[Router, list[Engine]], open_window: OpenWindow) -> None:
    """Scroll position, selected text and the very elements of the page survive them."""
    router, _ = fleet
    window = open_window(router, "ada", viewport={"width": 1000, "height": 400})
    page = window.page
    page.evaluate("""() => {
        window.scrollTo(0, 200);
        window.kept = document.querySelector("#card-direct .figures");
        const range = document.createRange();
        range.selectNodeContents(document.querySelector("#name-direct"));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
    }""")

    await_readings(page, 3)

    assert page.evaluate("window.scrollY") == 200
    assert page.evaluate("getSelection().toString()").strip() == "direct"
    assert page.evaluate("window.kept === document.querySelector('#card-direct .figures')")


def test_a_page_that_hears_nothing_says_so(
    fleet: tuple[Router, list[Engine]], open_window: OpenWindow
) -> None:
    """The router is cut off from its page, and comes back."""
    router, _ = fleet
    window = open_window(router, "vic")
    window.expect_problem("ERR_INTERNET_DISCONNECTED", "console: htmx:")
    page = window.page
    expect(page.get_by_text("Live", exact=True)).to_be_visible()

    window.context.set_offline(True)
    expect(page.locator("[data-age-text]")).to_contain_text("Last update 4 s ago")
    window.keep_picture("stale-light")

    window.context.set_offline(False)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()


def test_a_hidden_page_asks_for_nothing(fleet: tuple[Router, list[Engine]], open_window: OpenWindow) -> None:
    router, _ = fleet
    page = open_window(router, "vic").page
    await_readings(page, 1)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate("""() => {
        Object.defineProperty(document, "hidden", { value: true, configurable: true });
        window.ticks = 0;
        document.addEventListener("htmx:beforeRequest", () => window.ticks++);
    }""")
    asked.clear()

    eventually(lambda: page.evaluate("window.ticks") >= 2)

    assert asked == []


def test_a_viewer_sees_no_buttons_and_a_forged_post_is_refused(
    fleet: tuple[Router, list[Engine]], open_window: OpenWindow
) -> None:
    router, _ = fleet
    window = open_window(router, "vic")
    page = window.page
    expect(row(page, "member-a")).to_be_visible()
    for verb in ("Quiesce", "Drain", "Readmit"):
        expect(page.get_by_role("link", name=verb)).to_have_count(0)
    window.keep_picture("fleet-viewer-light")
    # With the token of a page that vic may open, in the same browser.
    window.expect_problem("403")
    forged = """async (verb) => {
        const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
        const body = new URLSearchParams({csrfmiddlewaretoken: token, scope: "chat", reason: "forged",
                                          timeout: "5"});
        return (await fetch(`/fleet/${verb}/`, {method: "POST", body})).status;
    }"""

    for verb in ("quiesce", "drain", "readmit"):
        assert page.evaluate(forged, verb) == 403

    status = router.request("GET", "/v1/admin/transition").json()
    assert [tier["state"] for tier in status["tiers"]] == ["admitting", "admitting"]


def test_without_javascript(fleet: tuple[Router, list[Engine]], open_window: OpenWindow) -> None:
    """The same work on whole pages."""
    router, _ = fleet
    window = open_window(router, "ada", java_script_enabled=False)
    page = window.page
    page.get_by_role("link", name="Quiesce chat/member-a").click()
    expect(page.get_by_role("heading", name="Quiesce chat/member-a")).to_be_visible()
    page.get_by_label("Reason").fill("two words")
    page.get_by_role("button", name="Quiesce now").click()
    expect(page.get_by_text("One word of letters, digits")).to_be_visible()
    page.get_by_label("Reason").fill("maintenance")
    page.get_by_role("button", name="Quiesce now").click()
    expect(page.get_by_text("Quiesced chat/member-a, reason maintenance.")).to_be_visible()

    page.get_by_role("link", name="Readmit").click()
    page.get_by_role("button", name="Verify and readmit").click()
    expect(page.get_by_text("Readmitted chat/member-a: it was verified.")).to_be_visible()


def test_a_session_that_ended_leads_to_the_log_in(
    fleet: tuple[Router, list[Engine]], open_window: OpenWindow
) -> None:
    router, _ = fleet
    window = open_window(router, "vic")

    window.context.clear_cookies(name="sessionid")

    expect(window.page.get_by_label("Username")).to_be_visible()


@pytest.fixture
def loaded(fleet: tuple[Router, list[Engine]]) -> tuple[Router, list[Engine]]:
    """A fleet with some work behind it, and decisions to look at."""
    router, engines = fleet
    for _ in range(6):
        assert router.chat("live.chat").status == 200
    assert router.chat("live.direct").status == 200
    return router, engines


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("light", {"color_scheme": "light"}),
        ("dark", {"color_scheme": "dark"}),
        ("phone", {"color_scheme": "light", "viewport": {"width": 390, "height": 844}}),
    ],
)
def test_pages_in_light_dark_and_on_a_phone(
    loaded: tuple[Router, list[Engine]], open_window: OpenWindow, name: str, options: dict[str, Any]
) -> None:
    """Each is kept as a picture, has nothing to scroll sideways, and breaks no strict content policy."""
    router, _ = loaded
    window = open_window(router, "root", **options)
    page = window.page

    eventually(lambda: router.request("GET", "/v1/decisions?limit=10").json()["count"] == 7)
    for title, path in (
        ("fleet", "/fleet/"),
        ("scopes", "/fleet/scopes/?scope=chat/member-a"),
        ("quiesce", "/fleet/quiesce/?scope=chat"),
        ("configuration", "/configuration/"),
        ("import", "/configuration/import/"),
        ("snapshot", "/configuration/snapshots/1/"),
        ("guide", "/fleet/guide/"),
        ("runbook", "/fleet/runbook/"),
        ("explain", "/explain/?model=live.chat"),
        ("decisions", "/admin/telemetry/decisionentry/"),
        ("index", "/admin/"),
        ("tier-form", "/admin/routing/tier/add/"),
    ):
        answer = page.goto(f"{router.url}{path}")
        assert answer is not None
        # Whatever breaks it is told in the browser's console, and fails the test there.
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        if title == "fleet":
            await_readings(page, 2)
        window.keep_picture(f"{title}-{name}")
        width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert width <= 0, f"{title} is {width} px too wide"
