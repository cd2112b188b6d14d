"""The views of `sps ui` at their limits: failures, no or many rows, long names, another service."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from harness.processes import DEADLINE_S
from harness.web_page import TOKEN, Jobs, Script, page_of
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.events import rfc3339
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from tests.web.complaints import without_complaints
from tests.web.samples import KIND, LOAD, RUN, decision, job, jobs, slice_of, team_sample

expect.set_options(timeout=DEADLINE_S * 1000)
_VIEWS = ("overview", "jobs", "slices", "tenants", "timeline", "usage", "run")
_LONG = "a-" + 30 * "long" + "-name"


@contextlib.contextmanager
def opened(
    browser: Browser,
    script: Script,
    view: str = "overview",
    *,
    submitted: Jobs | None = None,
    before: Callable[[Page], object] = lambda _: None,
    **context: Any,
) -> Iterator[Page]:
    """Opens a view of a service; `before` changes the page before it is loaded."""
    with (
        page_of(script, jobs=submitted or jobs(), load=LOAD, runs=[RUN]) as port,
        browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **context}) as made,
    ):
        page = made.new_page()
        before(page)
        page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}#{view}")
        yield page


class History:
    """Answers `api/history` with holdings of a second each, the oldest first, 50,010 at a time."""

    PAGE = 50_010

    def __init__(self, count: int) -> None:
        self.now = time.time()
        self.count = count
        self.asked: list[int] = []

    def holding(self, number: int) -> dict[str, Any]:
        end = self.now - 30.0 * (self.count - number) - 10.0
        return {
            "id": number, "slice": "slice-0", "instance_type": KIND, "tenant": f"t-{number}",
            "user": "ada", "team": None, "start": end - 1.0, "end": end, "text": "released",
        }  # fmt: skip

    def answer(self, route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        since, after = float(query["since"][0]), int(query["after"][0])
        self.asked.append(after)
        after = max(after, self.count - int((self.now - since) / 30.0))
        numbers = range(after + 1, min(after + self.PAGE, self.count) + 1)
        body = {
            "holdings": [self.holding(number) for number in numbers],
            "marks": [],
            "last": numbers[-1] if numbers else after,
            "complete": len(numbers) < self.PAGE,
        }
        route.fulfill(body=json.dumps(body), content_type="application/json")


def test_the_timeline_keeps_the_latest_of_very_many_holdings(browser: Browser) -> None:
    script = Script(answer=pb.GetStatusResponse(state="serving", slices=[slice_of("slice-0")]))
    history = History(200_040)

    def answer(page: Page) -> None:
        page.route("**/api/history?*", history.answer)

    with opened(browser, script, "timeline", before=answer) as page:
        told = page.locator("main > p[role=status]")
        shown = page.get_by_role("img", name="holding")
        bars = page.locator("main .picture > svg rect.own")
        expect(shown).to_have_attribute("aria-label", re.compile(r"\d+ holdings of 1 slice "))
        expect(told).to_have_text("")
        # What there was before has no place in the picture, and the way to it is told.
        page.get_by_label("Range").select_option("7776000")
        expect(told).to_contain_text("are not shown, as there are more than 200,000 since then.")
        expect(told).to_contain_text("In a terminal, sps usage --since=90d adds up all of them.")
        expect(shown).to_have_attribute("aria-label", re.compile("^200000 holdings of 1 slice "))
        # Of bars that cover each other one is drawn.
        assert 100 < bars.count() < 1500
        page.get_by_label("Range").select_option("600")
        expect(told).to_have_text("")
        # What happens afterwards is shown as well.
        history.count += 1
        history.now += 30.0
        script.answer.slices[0].node_pool = "changed"
        expect(bars.locator("title").filter(has_text="t-200041 ")).to_have_count(1)
        assert history.asked[-1] == 200_040


def test_a_range_that_is_chosen_while_the_history_is_read_is_loaded(browser: Browser) -> None:
    held: list[Route] = []

    def hold_the_first(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    with opened(browser, team_sample(), "slices") as page:
        page.route("**/api/history?*", hold_the_first)
        with page.expect_request("**/api/history?*"):
            page.get_by_role("link", name="Timeline").click()
        page.get_by_label("Range").select_option("604800")
        [first] = held
        with page.expect_request("**/api/history?*") as asked:
            first.continue_()
        since = float(parse_qs(urlsplit(asked.value.url).query)["since"][0])
        assert since < time.time() - 604_000
        # What a person has chosen is not changed by what was read.
        expect(page.get_by_role("img", name="holding")).to_be_visible()
        expect(page.locator("rect.own").first).to_be_visible()
        expect(page.get_by_label("Range")).to_have_value("604800")


def test_the_history_of_a_new_service_takes_the_place_of_the_old(browser: Browser) -> None:
    script = team_sample()
    with opened(browser, script, "timeline") as page:
        titles = page.locator("main .picture > svg rect.own title")
        expect(titles.filter(has_text="-sweep-")).not_to_have_count(0)
        now = time.time()
        one = decision(now - 40, "slice.freed", "new-job", slice="slice-0", duration_s=30.0)
        one.sequence = 1
        script.decisions = [one]
        script.answer.since = rfc3339(now - 60)
        expect(titles.filter(has_text="new-job")).to_have_count(1)
        expect(titles.filter(has_text="-sweep-")).to_have_count(0)
        page.get_by_role("link", name="Overview").click()
        events = page.get_by_role("region", name="Last decisions").get_by_role("listitem")
        expect(events).to_have_count(1)
        expect(events).to_contain_text("new-job")


def test_each_part_says_that_it_is_not_known(browser: Browser) -> None:
    class Failing(Jobs):
        def jobs(self) -> Any:
            raise ServiceNotReady("the disk is full")

    failing = ("history", "held-over-time", "decisions", "usage", "log")

    def refuse(page: Page) -> None:
        body = json.dumps({"error": "the disk is full", "hint": None})
        for name in failing:
            page.route(
                f"**/api/{name}?*",
                lambda route: route.fulfill(status=503, body=body, content_type="application/json"),
            )

    with opened(browser, team_sample(), submitted=Failing(), before=refuse) as page:
        for view, text in (
            ("overview", "not known"),
            ("overview", "They are not known: the disk is full"),
            ("jobs", "The jobs are not known: the disk is full"),
            ("timeline", "The history is not known: the disk is full"),
            ("usage", "The usage is not known: the disk is full"),
            ("usage", "The chart is not known: the disk is full"),
            ("connection/bob-train-1", "the disk is full"),
        ):
            page.evaluate(f"location.hash = '#{view}'")
            expect(page.locator("main")).to_contain_text(text)


def test_a_server_that_does_not_answer_is_said_in_words(browser: Browser) -> None:
    with opened(browser, team_sample(), "jobs") as page:
        expect(page.get_by_role("table", name="Your submitted jobs")).to_be_visible()
        page.route("**/api/jobs?*", lambda route: route.abort())
        expect(page.locator("main")).to_contain_text(
            "The jobs are not known: The server of this page does not answer."
        )
        page.unroute("**/api/jobs?*")
        expect(page.locator("main")).not_to_contain_text("The jobs are not known")


def test_a_service_without_anything_has_words_on_each_view(browser: Browser) -> None:
    empty = Script(answer=pb.GetStatusResponse(state="serving", since=rfc3339(time.time() - 60)))
    with opened(browser, empty, submitted=Jobs()) as page, without_complaints(page):
        for view, text in (
            ("overview", "The service has no slices."),
            ("overview", "The queue is empty"),
            ("jobs", "You have no submitted jobs."),
            ("slices", "The service has no slices."),
            ("tenants", "The service has no tenants."),
            ("usage", "No slice was held."),
        ):
            page.evaluate(f"location.hash = '#{view}'")
            expect(page.locator("main")).to_contain_text(text)
            assert page.get_by_role("table").count() == 0, view


@pytest.mark.parametrize("width", [1280, 390])
def test_long_names_do_not_widen_a_view(browser: Browser, width: int) -> None:
    script = team_sample()
    script.answer.slices[0].id = f"slice-{_LONG}"
    script.answer.slices[0].node_pool = f"pool-{_LONG}"
    for one in script.answer.slices:
        one.tenant = one.tenant and f"{one.tenant}-{_LONG}"
    for tenant in script.answer.tenants:
        tenant.name, tenant.user, tenant.team = (
            f"{text}-{_LONG}" for text in (tenant.name, tenant.user, tenant.team)
        )
        for held in tenant.slices:
            held.slice_id = held.slice_id.replace("slice-0", f"slice-{_LONG}")
    for queued in script.answer.queue:
        queued.tenant += f"-{_LONG}"
    submitted = Jobs(job(f"train-{_LONG}", "failed", reason=_LONG, workdir=f"/home/{_LONG}"))
    submitted.written = [40 * _LONG]
    holder = script.answer.tenants[0].name
    with opened(
        browser, script, submitted=submitted, viewport={"width": width, "height": 800}
    ) as page:
        for view in (*_VIEWS, f"connection/{holder}", f"job/train-{_LONG}"):
            page.evaluate(f"location.hash = '#{view}'")
            expect(page.locator("main > *").nth(1)).to_be_attached()
            expect(page.locator("main")).to_contain_text("long" if view != "run" else "Goodput")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, (view, wide)


def test_a_thousand_jobs_are_listed_filtered_and_sorted(browser: Browser) -> None:
    states = ("succeeded", "failed", "running", "cancelled")
    many = Jobs(*(job(f"train-{n}", states[n % 4], submitted=5000.0 - n) for n in range(1000)))
    with opened(browser, team_sample(), "jobs", submitted=many) as page, without_complaints(page):
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(1000)
        expect(rows.first).to_contain_text("train-999")
        page.get_by_label("State").select_option("failed")
        expect(rows).to_have_count(250)
        page.get_by_role("button", name="Job").click()
        page.get_by_role("button", name="Job").click()
        expect(rows.first.locator("th")).to_have_text("train-1")


def test_the_keyboard_skips_to_the_view_whose_address_stays(browser: Browser) -> None:
    with opened(browser, team_sample(), "slices") as page:
        expect(page.get_by_role("heading", name="Slices")).to_be_visible()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "page"
        assert page.url.endswith("#slices")


def test_a_browser_that_stores_nothing_shows_the_page(browser: Browser) -> None:
    denied = (
        "Object.defineProperty(window, 'localStorage', { get() { throw new Error('denied'); } });"
    )
    with (
        opened(
            browser, team_sample(), "slices", before=lambda page: page.add_init_script(denied)
        ) as page,
        without_complaints(page),
    ):
        legend = page.get_by_role("list", name="Colours of holders")
        expect(legend).to_contain_text("bob")
        page.get_by_label("Colour by").select_option("team")
        expect(legend).to_contain_text("vision")


def test_views_that_were_left_ask_nothing_more(browser: Browser) -> None:
    with opened(browser, team_sample(), before=lambda page: page.clock.install()) as page:
        for view in (*_VIEWS, "connection/bob-train-1", "job/sweep-1", "slices"):
            page.evaluate(f"location.hash = '#{view}'")
            expect(page.locator("main > *").nth(1)).to_be_attached()
        expect(page.locator(".grid li").first).to_be_visible()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(urlsplit(request.url).path))
        page.clock.run_for(60_000)
        assert [path for path in asked if path != "/api/stream"] == []
