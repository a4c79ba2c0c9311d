"""From an empty router to the first request, from a broken document to a served one, in a browser."""

import socket
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from demo import fleet as demo_fleet
from routing.console.configuration import DEMO_BASE_PORT
from tests.browser.conftest import Watched
from tests.live.harness import Documents, Engine, Router, chat_body, direct_tier, documents, request
from tests.live.raw import CHAT

Start = Callable[..., Router]
OpenWindow = Callable[..., Watched]


def upload(page: Page, directory: Path, found: Documents) -> None:
    """Choose both files on the import page and hand them in."""
    (directory / "router.toml").write_bytes(found.config)
    (directory / "topology.toml").write_bytes(found.topology)
    page.get_by_label("Router configuration").set_input_files(directory / "router.toml")
    page.get_by_label("Topology", exact=True).set_input_files(directory / "topology.toml")
    page.get_by_role("button", name="Check and compare").click()


def test_import_mend_compare_activate(
    engine: Engine, start: Start, open_window: OpenWindow, documents_dir: Path
) -> None:
    """A broken document is told fault by fault; the mended one is compared and activated, and serves."""
    installed = documents(direct_tier(engine))
    router = start(installed)
    window = open_window(router, "ada")
    page = window.page
    page.get_by_role("link", name="Configuration").click()
    page.get_by_role("link", name="Import a TOML file").click()
    changed = documents(direct_tier(engine, max_concurrency=5), aliases={"live.second": "direct"})
    broken = Documents(
        config=changed.config.replace(b'"max_concurrency" = 5', b"max_concurrency = 0\ncolour = 1"),
        topology=changed.topology,
    )

    upload(page, documents_dir, broken)
    lines = broken.config.decode().splitlines()
    for place, message in (
        ("max_concurrency = 0", "must be an integer from 1 to 100000, not 0"),
        ("colour = 1", "is not a known key"),
    ):
        fault = page.get_by_role("row", name=message)
        expect(fault).to_contain_text(f"router.toml, line {lines.index(place) + 1}")
    window.keep_picture("faults-light")

    upload(page, documents_dir, changed)
    expect(page.locator(".diff-added", has_text="max_concurrency = 5")).to_be_visible()
    plan = page.get_by_role("table", name="What activating it changes")
    expect(plan.get_by_role("row", name="direct")).to_contain_text("max_concurrency")
    expect(page.get_by_text("Nothing has to be drained")).to_be_visible()
    window.keep_picture("difference-light")
    page.get_by_role("button", name="Activate", exact=True).click()
    expect(page.get_by_text("Snapshot 2 is active.")).to_be_visible()
    window.keep_picture("activation-light")
    assert router.chat("live.second").status == 200

    # Back to the one before.
    page.get_by_role("link", name="Configuration").first.click()
    page.get_by_role("link", name="Snapshot 1", exact=True).click()
    page.get_by_role("button", name="Activate", exact=True).click()
    expect(page.get_by_text("Snapshot 1 is active.")).to_be_visible()
    assert router.chat("live.second").status == 404


def test_edit_publish_drain_activate(
    make_engine: Callable[..., Engine], start: Start, open_window: OpenWindow
) -> None:
    """The working copy: load, edit with a field error first, publish, and let the router drain by itself."""
    first, second = make_engine("first"), make_engine("second")
    router = start(documents(direct_tier(first)))
    window = open_window(router, "root")
    page = window.page
    page.get_by_role("link", name="Configuration").click()
    page.get_by_role("button", name="Load what is active into it").click()
    expect(page.get_by_text("same as what is active")).to_be_visible()

    page.get_by_role("link", name="Edit the rows").click()
    page.get_by_role("link", name="direct", exact=True).click()
    page.locator("#id_base_url").fill("ftp://nowhere")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("must be an http or https URL")).to_be_visible()
    page.locator("#id_base_url").fill(second.url)
    page.get_by_role("button", name="Save", exact=True).click()

    page.get_by_role("link", name="See the difference and publish").click()
    expect(page.locator(".diff-added", has_text=second.url)).to_be_visible()
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_text("direct has to be quiesced and free of requests first.")).to_be_visible()
    window.keep_picture("needs-drain-light")
    page.get_by_role("button", name="Drain and activate").click()
    for step in (
        "Quiesce direct",
        "Drain direct",
        "Move the pointer and swap",
        "Verify direct",
        "Readmit direct",
    ):
        expect(page.get_by_role("listitem").filter(has_text=step)).to_be_visible()
    expect(page.get_by_text("Snapshot 2 is active.")).to_be_visible()
    window.keep_picture("drained-activation-light")
    assert router.chat("live.direct").status == 200
    assert second.stats()["requests"] != first.stats()["requests"]


def test_from_an_empty_router_to_the_first_request(start: Start, open_window: OpenWindow) -> None:
    """The guide: load the demo, activate it, make a key, send what the page says."""
    router = start(environ={"ANVIL_TOKEN": ""})
    window = open_window(router, "root")
    page = window.page
    expect(page.get_by_role("heading", name="First steps")).to_be_visible()
    window.keep_picture("guide-empty-light")

    page.get_by_role("button", name="Load the demo").click()
    expect(page.locator(".diff-added", has_text="demo.chat").first).to_be_visible()
    page.get_by_role("button", name="Activate", exact=True).click()
    expect(page.get_by_text("Snapshot 1 is active.")).to_be_visible()
    page.get_by_role("link", name="To the fleet").click()
    expect(page.locator("#card-chat")).to_be_visible()

    window.goto("/fleet/guide/")
    page.get_by_role("link", name="API key").click()
    expect(page.get_by_label("Name")).to_have_value("first")
    page.get_by_role("button", name="Save", exact=True).click()
    key = page.locator("#made-key").inner_text()
    assert key not in router.log
    page.get_by_role("link", name="I have kept it").click()
    assert key not in page.content()

    headers = {"Authorization": f"Bearer {key}"}
    answer = request(router.port, "POST", CHAT, body=chat_body("demo.chat"), headers=headers)
    if not _demo_ports_are_free():
        return
    # Nobody has started the demo's engines here: the fleet page says what is the matter.
    assert answer.status == 503
    window.goto("/fleet/")
    expect(page.get_by_text("Both members are not ready: member-a and member-b:")).to_be_visible()
    expect(page.get_by_text("found the connection refused").first).to_be_visible()


def _demo_ports_are_free() -> bool:
    for offset in range(len(demo_fleet.MEMBERS)):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", DEMO_BASE_PORT + offset)) == 0:
                return False
    return True
