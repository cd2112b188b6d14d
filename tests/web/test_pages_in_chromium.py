"""The pages of `sps ui` in Chromium: what they show, live, to everybody, with hostile names."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

from harness.layers.thorough import thorough
from harness.processes import DEADLINE_S
from harness.testbed.ways import loopback_listener
from harness.web_page import TOKEN, Script, page_of
from tests.web.complaints import without_complaints
from tests.web.samples import HOSTILE, KIND, LOAD, RUN, decision, jobs, sample

PAGES = (
    "overview", "jobs", "job/train-2", "slices", "tenants", "timeline", "usage",
    "connection/ada-job", "connection/old-job", "run",
)  # fmt: skip
expect.set_options(timeout=DEADLINE_S * 1000)


@pytest.fixture
def script() -> Script:
    return sample()


@pytest.fixture
def port(script: Script) -> Iterator[int]:
    with page_of(script) as port:
        yield port


@pytest.fixture
def page(browser: Browser, port: int) -> Iterator[Page]:
    """A page at 1280 px; what its console complains about fails the test."""
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        page = context.new_page()
        # (The server refuses names that no connection can have: the page shows that.)
        with without_complaints(page, "400 /api/connection", "400 /api/log", "404 /api/log"):
            page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}#slices")
            yield page


def tile(page: Page, name: str) -> Any:
    return page.get_by_role("listitem").filter(has=page.get_by_text(name, exact=True))


def test_slices_are_shown_and_follow_the_service(page: Page, script: Script) -> None:
    expect(page).to_have_url(re.compile(r"/#slices$"))  # the token is gone from it
    kinds = {
        "slice-0": "held", "slice-1": "cordoned", "slice-2": "lost", "slice-3": "draining",
        "slice-10": "free", "slice-11": "spare",
    }  # fmt: skip
    for name, kind in kinds.items():
        expect(tile(page, name)).to_contain_text(kind)
    names = page.locator(".grid .row > :first-child")
    # By node pool, in the order of their numbers.
    assert names.all_text_contents() == [*(name for name in kinds if name != "slice-1"), "slice-1"]
    expect(page.locator(".pool").last).to_contain_text(f"Node pool {HOSTILE}")
    # Names are text, whatever is in them.
    for text in ("ada-job[0]", f"user {HOSTILE}, team blue, from laptop", "host node-7"):
        expect(tile(page, "slice-0")).to_contain_text(text)
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "2/6, 1 waiting, 1 lost · Slices - Shared Pathways"
    # The holder has a page, and its colour is in the legend.
    legend = page.get_by_role("list", name="Colours of holders")
    expect(legend).to_have_text(f"{HOSTILE}: 2 slices")
    colour = "(element, part) => getComputedStyle(element, part).backgroundColor"
    assert tile(page, "slice-0").evaluate(colour, "::before") == (
        legend.locator(".swatch").evaluate(colour, None)
    )
    expect(page.get_by_role("link", name="ada-job[0]")).to_have_attribute(
        "href", "#connection/ada-job"
    )

    # Elements stay, and are changed in place.
    page.evaluate("document.querySelector('.grid li').mine = true")
    script.answer.slices[0].ClearField("tenant")
    script.answer.slices[1].state = "ready"
    del script.answer.slices[2]
    expect(tile(page, "slice-0")).to_contain_text("free")
    expect(tile(page, "slice-1")).to_contain_text("free")
    expect(tile(page, "slice-2")).to_have_count(0)
    assert page.evaluate("document.querySelector('.grid li').mine")

    page.get_by_label("Slice, holder, user or host").fill("node-7")
    expect(names).to_have_text(["slice-0"])
    page.get_by_label("State").select_option("lost")
    expect(page.get_by_text("No slice matches the filter.")).to_be_visible()


def test_waiting_tenants_are_shown_with_reasons_and_explained(page: Page, script: Script) -> None:
    page.get_by_role("link", name="Queue and tenants").click()
    queue = page.get_by_role("table", name="Waiting, each type")
    row = queue.get_by_role("row").nth(1)
    for text in ("bob-job", "bob", f"{KIND}=3", "2 min", f"no slice {HOSTILE}"):
        expect(row).to_contain_text(text)
    expect(page.get_by_role("table", name="All tenants")).to_contain_text(f"{HOSTILE}@laptop")
    # By keyboard, and the button keeps the focus while the table changes.
    row.get_by_role("button", name="Explain bob-job").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".why")).to_contain_text("bob-job waits.")
    script.answer.queue[0].reason = "another reason"
    expect(row).to_contain_text("another reason")
    expect(row.get_by_role("button")).to_be_focused()
    del script.answer.queue[:]
    expect(queue).to_be_hidden()


def test_names_and_labels_are_text_on_every_page(page: Page) -> None:
    page.get_by_role("link", name="Queue and tenants").click()
    row = page.get_by_role("table", name="All tenants").get_by_role("row").filter(has_text="img")
    expect(row.filter(has_text="onerror")).to_have_count(2)  # a user's name, and a tenant's
    page.get_by_role("table", name="All tenants").get_by_role("link", name=HOSTILE).click()
    expect(page.locator(".subject")).to_contain_text(HOSTILE)
    expect(page.get_by_role("status").filter(has_text=HOSTILE)).to_have_count(1)
    for name in ("slices", "timeline", "usage"):
        page.evaluate(f"location.hash = '#{name}'")
        expect(page.get_by_text(HOSTILE).first).to_be_attached()
        assert page.locator("main img, main script").count() == 0
        assert page.title().endswith(" - Shared Pathways")


def test_the_timeline_shows_holdings_and_losses(page: Page, script: Script) -> None:
    page.get_by_role("link", name="Timeline").click()
    picture = page.get_by_role("img", name="holding")
    expect(picture).to_have_attribute("aria-label", re.compile("3 holdings of 6 slices"))
    # All of a service of half an hour is in the picture, and fills most of it.
    expect(page.get_by_label("Range")).to_have_value("3600")
    drawing = page.locator("main .picture > svg")
    expect(drawing.locator("rect.going")).to_have_count(2)
    expect(drawing.locator(".mark.lost")).to_have_count(1)
    expect(drawing.locator(".mark.lost title")).to_contain_text(HOSTILE)
    expect(drawing.locator("text.group")).to_have_text(f"{KIND}, 6 slices")
    expect(page.get_by_role("list", name="Colours of holders")).to_contain_text(HOSTILE)
    page.get_by_text("As a table").click()
    rows = page.get_by_role("table").get_by_role("row")
    expect(rows).to_have_count(4)
    expect(rows.filter(has_text="old-job")).to_contain_text(["20 min"])
    now = time.time()
    freed = decision(now, "slice.freed", "new-job", slice="slice-10", duration_s=60.0)
    script.decisions = [*script.decisions, freed]
    script.answer.slices[4].node_pool = "changed"
    expect(rows.filter(has_text="new-job")).to_have_count(1)
    page.get_by_role("button", name="Zoom in").click()
    expect(page.get_by_label("Range")).to_have_value("600")
    page.get_by_role("button", name="Earlier").click()
    expect(drawing.locator(".mark.lost")).to_have_count(1)
    page.get_by_label("Slice, tenant, user or team").fill("slice-2")
    expect(picture).to_have_attribute("aria-label", re.compile("of 1 slice "))


def test_usage_is_shown_and_downloaded(page: Page) -> None:
    page.get_by_role("link", name="Usage").click()
    row = page.get_by_role("table", name="Usage by user").get_by_role("row").nth(1)
    for text in (HOSTILE, "2 slice-h", "33.3 %"):
        expect(row).to_contain_text(text)
    page.get_by_role("combobox", name="By").select_option("team")
    expect(page.get_by_role("columnheader", name="Team")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as CSV").click()
    assert download.value.path().read_text().startswith("team,slice_seconds")


def test_a_service_and_a_server_that_go_away_and_come_back(browser: Browser) -> None:
    script = sample()
    # (Bound until the end, so that no other process gets the port while the server is away.)
    with loopback_listener(0) as reserved, browser.new_context() as context:
        port = reserved.getsockname()[1]
        page = context.new_page()
        # Reports what a screen reader announces of the service.
        page.add_init_script(
            """addEventListener("DOMContentLoaded", () => {
              window.announced = [];
              const condition = document.getElementById("condition");
              new MutationObserver(() => announced.push(condition.textContent))
                .observe(condition, { childList: true, characterData: true, subtree: true });
            })"""
        )
        condition, elapsed = page.locator("#condition"), page.locator("#elapsed")
        with page_of(script, port=port):
            page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}#slices")
            expect(tile(page, "slice-0")).to_contain_text("held")
            script.failure = "the resource manager is away"
            away = "The service does not answer; trying again. the resource manager is away"
            expect(condition).to_have_text(away)
            expect(tile(page, "slice-0")).to_contain_text("held")
            # The seconds are counted, but only changes of the condition are announced.
            expect(elapsed).to_have_text(re.compile(r"Last answer .* ago\."))
            expect(elapsed).not_to_have_text(elapsed.inner_text())
            assert page.evaluate("announced") == [away]
            script.failure = ""
            expect(condition).to_be_empty()
        expect(condition).to_have_text(re.compile("The server of this page .* does not answer"))
        with page_of(script, port=port):
            expect(condition).to_be_empty()
            assert len(page.evaluate("announced")) == 4


def test_an_action_is_asked_back_and_shown(browser: Browser) -> None:
    script = sample()
    refuse = [sys.executable, "-c", f"import sys; sys.exit({f'error: no {HOSTILE} hint: wait'!r})"]
    with browser.new_context() as context, page_of(script, delete_command=refuse) as port:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}#slices")
        # By keyboard alone.
        page.get_by_role("button", name="slice-0").press("Enter")
        dialog = page.get_by_role("dialog", name="slice-0")
        expect(dialog.get_by_role("button", name="Cordon")).to_be_focused()
        page.keyboard.press("Enter")
        expect(dialog.get_by_text("Stop new placements on slice-0?")).to_be_visible()
        assert script.answer.slices[0].state == "ready"
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("status")).to_contain_text("slice-0 is cordoned")
        expect(tile(page, "slice-0")).to_contain_text("cordoned")
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        # What is refused is shown as text, with its hint.
        page.get_by_role("link", name="Queue and tenants").click()
        waiting = page.get_by_role("table", name="Waiting, each type")
        waiting.get_by_role("button", name="Delete bob-job").click()
        dialog = page.get_by_role("dialog", name="bob-job")
        # What destroys something is not what Enter does.
        expect(dialog.get_by_role("button", name="Keep it as it is")).to_be_focused()
        dialog.get_by_role("button", name="Delete bob-job").click()
        expect(dialog.get_by_role("status")).to_have_text(f"no {HOSTILE} (wait)")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Reserve slices").click()
        dialog = page.get_by_role("dialog", name="Reserve slices")
        dialog.get_by_label("For the user").fill("ada")
        page.keyboard.press("Enter")
        expect(dialog.get_by_text(f"Reserve 1 x {KIND} for user ada, for 8 h")).to_be_visible()


def test_an_own_connection_is_profiled(browser: Browser) -> None:
    own = {"state": "RUNNING", "pid": 7, "agent_pid": 8, "link": None, "host": None}
    asked: list[Any] = []

    def as_own(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "own": own})

    def profile(route: Route) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(json={"done": "bob-job is profiled: /profiles/now"})

    with browser.new_context() as context, page_of(sample(), delete_command=["false"]) as port:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}#connection/bob-job")
        expect(page.get_by_role("button", name="Delete bob-job")).to_be_visible()
        # Only the machine of a connection has its proxy's token.
        button = page.get_by_role("button", name="Profile for 5 s")
        expect(button).to_be_hidden()
        page.route("**/api/connection?*", as_own)
        page.route("**/api/actions/profile", profile)
        button.click()
        dialog = page.get_by_role("dialog", name="bob-job")
        expect(dialog).to_contain_text("Its program goes on")
        assert asked == []
        dialog.get_by_role("button", name="Profile").click()
        expect(dialog.get_by_role("status")).to_have_text("bob-job is profiled: /profiles/now")
        assert asked == [{"name": "bob-job"}]


def test_a_wrong_token_is_told_what_to_do(browser: Browser, port: int) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/?token=wrong")
        expect(page.get_by_role("heading")).to_have_text("Not allowed")
        expect(page.get_by_text("Open the whole address")).to_be_visible()


@pytest.mark.parametrize("width", [1280, *thorough(390)])
def test_every_page_is_accessible_and_fits(browser: Browser, width: int) -> None:
    # (axe is put into the page, which the page's own policy refuses.)
    with (
        browser.new_context(
            viewport={"width": width, "height": 800}, bypass_csp=True, reduced_motion="reduce"
        ) as context,
        page_of(sample(), delete_command=["false"], runs=[RUN], jobs=jobs(), load=LOAD) as port,
    ):
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}")
        for name in PAGES:
            page.goto(f"http://127.0.0.1:{port}/#{name}")
            content = page.locator(
                ".grid li, table tbody tr, svg g rect, .facts div, .figure"
            ).first
            expect(content).to_be_visible()
            check_accessibility(page, name)
            overflow = "document.scrollingElement.scrollWidth - innerWidth"
            assert page.evaluate(overflow) <= 0, name
        page.goto(f"http://127.0.0.1:{port}/#tenants")
        page.get_by_role("button", name="Reserve slices").click()
        check_accessibility(page, "the dialog")


def check_accessibility(page: Page, name: str) -> None:
    """Checks axe's rules in light and dark."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = Axe().run(page)
        assert found.violations_count == 0, f"{name}, {scheme}: {found.generate_report()}"
