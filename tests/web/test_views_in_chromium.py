"""The views of `sps ui` in Chromium: overview, jobs, colours, charts and plans."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from harness.processes import DEADLINE_S
from harness.web_page import TOKEN, Jobs, Script, page_of
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from tests.web.samples import HOSTILE, KIND, LOAD, RUN, jobs, team_sample

COLOUR = "one => getComputedStyle(one).color"
BACK = "one => getComputedStyle(one).backgroundColor"

expect.set_options(timeout=DEADLINE_S * 1000)


@pytest.fixture
def script() -> Script:
    return team_sample()


@pytest.fixture
def submitted() -> Jobs:
    return jobs()


@pytest.fixture
def page(browser: Browser, script: Script, submitted: Jobs) -> Iterator[Page]:
    """The page of a team, which may act."""
    refused = [sys.executable, "-c", "raise SystemExit('error: not here')"]
    with (
        page_of(script, jobs=submitted, load=LOAD, runs=[RUN], delete_command=refused) as port,
        browser.new_context(viewport={"width": 1440, "height": 900}) as context,
    ):
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}")
        yield page


def figure(page: Page, name: str) -> str:
    """The text of a figure of the overview, in one line."""
    card = page.locator(".figure").filter(has=page.get_by_text(name, exact=True))
    return re.sub(r"\s+", " ", card.inner_text())


def test_the_overview_has_the_figures_of_the_service(page: Page, script: Script) -> None:
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    used = page.locator(".figure").filter(has_text="Slices in use")
    expect(used).to_contain_text(re.compile(r"70 %.*14 of 20, \d+ % in the last hour"))
    # The last hour is drawn from the history: nothing was held at its begin.
    points = used.locator("path.line").get_attribute("d") or ""
    heights = [float(point.split()[1]) for point in points.removeprefix("M").split("L")]
    assert len(heights) == 60
    assert heights[0] == 35.0 > heights[-1]
    expect(page.locator(".figure").filter(has_text="Waiting")).to_contain_text(
        re.compile(r"3longest for \d+ min")
    )
    work = page.locator(".figure").filter(has_text="Running jobs")
    expect(work).to_contain_text("jobs11 queued, 1 failed in 24 h")
    assert (
        figure(page, "Out of service")
        == "Out of service 2 1 lost, 1 cordoned, draining or starting"
    )
    load = page.locator(".figure").filter(has_text="Memory and disk")
    expect(load).to_contain_text("3.0 GiBof 24.0 GiB, disk: 60.0 GiB of 250 GiB free")
    types = page.get_by_role("region", name="Slices by type")
    expect(types.get_by_role("img", name="tpuv6e:2x2")).to_have_attribute(
        "aria-label", "tpuv6e:2x2: 7 held, 1 free, 1 spare, 1 lost of 10 slices"
    )
    # Who is next, and when; an unknown time comes last.
    following = page.get_by_role("region", name="Next in the queue").get_by_role("listitem")
    expect(following).to_have_text(
        [
            "in about 4 minkim-wait gets tpuv6e:4x4=2",
            "in about 8 minjoe-wait gets tpuv6e:2x2=4",
            "not knownivy-wait gets tpuv5e:1x1=1",
        ]
    )
    events = page.get_by_role("region", name="Last decisions").get_by_role("listitem")
    expect(events).to_have_count(12)
    expect(events.filter(has_text="slice-3 is lost: no answer")).to_have_count(1)
    # Each figure leads to its page; the tab tells the state.
    assert page.title() == "14/20, 3 waiting, 1 lost · Overview - Shared Pathways"
    assert page.locator("#icon").get_attribute("href") == "static/icon_alarm.svg"
    work.click()
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    script.answer.slices[3].state = "ready"
    expect(page.locator("#icon")).to_have_attribute("href", "static/icon.svg")


def test_what_is_hidden_is_not_displayed(browser: Browser, script: Script) -> None:
    """Whatever `display` its class gives; on a page for several people there are no jobs."""
    with page_of(script, user="ada@example.org") as port, browser.new_context() as context:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator(".figure").filter(has_text="Slices in use")).to_contain_text("14 of 20")
        expect(page.locator(".figure").filter(has_text="Running jobs")).to_be_hidden()
        expect(page.locator(".figure").filter(has_text="Memory and disk")).to_be_hidden()
        expect(page.locator("#service")).to_contain_text("signed in as ada@example.org")
        expect(page.locator("#jobs-link")).to_be_hidden()
        for link in page.get_by_role("navigation").get_by_role("link").all():
            link.click()
            expect(link).to_have_attribute("aria-current", "page")
            assert page.locator("[hidden]:visible").count() == 0
        page.goto(f"http://127.0.0.1:{port}/#jobs")
        expect(page.get_by_text("shows none")).to_be_visible()


def test_jobs_are_shown_with_their_output_and_cancelled(page: Page, submitted: Jobs) -> None:
    page.get_by_role("navigation").get_by_role("link", name="Jobs").click()
    table = page.get_by_role("table", name="Your submitted jobs")
    states = ["queued", "running", "failed", "succeeded"]
    expect(table.locator(".state-chip")).to_have_text(states)
    failed = table.get_by_role("row").filter(has_text="train-2")
    for text in ("3 of 3", f"{KIND}=2", "55 min", "the program ended with exit code 1"):
        expect(failed).to_contain_text(text)
    page.get_by_label("State").select_option("active")
    expect(table.locator(".state-chip")).to_have_text(states[:2])

    table.get_by_role("link", name="sweep-1").click()
    output = page.get_by_role("region", name="Output of sweep-1")
    # As a terminal shows it: colours, the last form of a line, and no escape that does more.
    expect(output).to_have_text(f"step 1 loss 2.31\nstep 2 loss 2.07\n100 %\nWARNING {HOSTILE}")
    inks = output.locator("span")
    expect(inks).to_have_text(["step 1", "2.31", "WARNING"])
    assert [one.get_attribute("class") for one in inks.all()] == ["bold", "ink-2", "ink-1"]
    assert page.locator("main img, main script").count() == 0
    submitted.written.append("step 3 loss 1.9")
    expect(output).to_contain_text("step 3 loss 1.9")

    page.get_by_role("button", name="Cancel the job").click()
    dialog = page.get_by_role("dialog", name="sweep-1")
    expect(dialog).to_contain_text("Its program gets SIGTERM")
    assert submitted.job("sweep-1").state == "running"
    dialog.get_by_role("button", name="Cancel sweep-1").click()
    expect(dialog.get_by_role("status")).to_have_text("sweep-1 is cancelled")
    page.keyboard.press("Escape")
    expect(page.locator(".state-chip")).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Submit again")).to_be_visible()


def test_an_explanation_stays_below_its_row_and_goes_with_it(page: Page, script: Script) -> None:
    page.get_by_role("link", name="Queue and tenants").click()
    body = page.get_by_role("table", name="Waiting, each type").locator("tbody")
    expect(body.get_by_role("row")).to_have_count(3)
    page.get_by_role("button", name="Explain ivy-wait").first.click()
    expect(body.get_by_role("row").nth(1)).to_contain_text("ivy-wait waits.")
    # Others come and go.
    entry = script.answer.queue.add(tenant="hal-wait", position=2, wants={KIND: 1})
    script.answer.tenants.add(name="hal-wait", user="hal", state="waiting")
    expect(body.get_by_role("row")).to_have_count(5)
    expect(body.get_by_role("row").nth(1)).to_contain_text("ivy-wait waits.")
    kept = [one for one in script.answer.queue if one.tenant != "ivy-wait"]
    assert entry in kept
    del script.answer.queue[:]
    script.answer.queue.extend(kept)
    expect(body.get_by_role("row")).to_have_count(3)
    expect(body).not_to_contain_text("ivy-wait")


def test_no_two_owners_have_one_look(page: Page) -> None:
    page.get_by_role("link", name="Timeline").click()
    legend = page.get_by_role("list", name="Colours of holders")
    expect(legend.get_by_role("listitem")).to_have_count(11)
    looks = {
        one.locator(".swatch").get_attribute("class"): one.inner_text()
        for one in legend.get_by_role("listitem").all()
    }
    assert len(looks) == 11
    # The same on the tiles, also where a user is not seen first.
    page.get_by_role("link", name="Slices", exact=True).click()
    tile = page.get_by_role("listitem").filter(has_text="kim-train-10")
    [kim] = [look for look, name in looks.items() if name == "kim"]
    assert kim is not None
    expect(tile).to_have_class(f"held {kim.removeprefix('swatch ')}")
    page.get_by_label("Colour by").select_option("team")
    legend = page.get_by_role("list", name="Colours of holders")
    expect(legend.get_by_role("listitem")).to_have_count(3)


def test_the_picture_of_a_reservation_reaches_it(page: Page) -> None:
    page.get_by_role("link", name="Queue and tenants").click()
    plan = page.get_by_role("region", name="Plans").locator("figure")
    expect(plan.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile(r"slice-15 is free, and its own in \d")
    )
    # Drawn from now to beyond the begin, at which a line stands and the bars change.
    begin = float(plan.locator("line").get_attribute("x1") or 0)
    width = float((plan.locator("svg").get_attribute("viewBox") or "").split()[2])
    bars = [float(bar.get_attribute("x") or 0) for bar in plan.locator("rect.going.own").all()]
    assert 0.5 * width < begin < 0.9 * width
    assert begin == pytest.approx(min(bars), abs=1.0)


def test_a_run_is_drawn_with_its_gaps_events_and_costs(page: Page) -> None:
    page.get_by_role("link", name="Training").click()
    costs = page.get_by_role("list", name="What the time was spent on").get_by_role("listitem")
    expect(costs.first).to_have_text("goodput: 27 s, 27.4 %")
    expect(costs.filter(has_text="lost steps")).to_have_text("lost steps: 25 s, 25.4 %")
    bar = page.get_by_role("region", name="Goodput").locator(".shares > span")
    assert bar.count() == costs.count()
    good = bar.first.bounding_box()
    whole = page.get_by_role("region", name="Goodput").locator(".shares").bounding_box()
    assert good is not None
    assert whole is not None
    assert good["width"] / whole["width"] == pytest.approx(0.274, abs=0.02)
    signs = page.get_by_role("list", name="Events of the run")
    expect(signs).to_have_text("lostrestoredkilled")
    expect(page.get_by_role("img", name="Loss from 1 at step")).to_be_visible()
    expect(
        page.get_by_role("img", name=re.compile("Up to 3 slices .* lost 1 time"))
    ).to_be_visible()
    expect(page.locator("canvas")).to_have_count(2)


def test_a_connection_that_has_ended_keeps_its_page(page: Page) -> None:
    page.evaluate("location.hash = '#connection/ada-sweep-0'")
    expect(page.locator(".state-chip")).to_have_text("ended")
    expect(page.get_by_text("It has ended. This is what the history has of it.")).to_be_visible()
    held = page.get_by_role("table", name="Slices that it held").get_by_role("row")
    expect(held).to_have_count(2)
    expect(held.nth(1)).to_contain_text("ada-sweep-0 gave back slice-0")
    expect(page.get_by_role("button", name="Delete ada-sweep-0")).to_be_hidden()
    page.evaluate("location.hash = '#connection/nobody'")
    expect(page.get_by_text("no connection of this name, now or in its history")).to_be_visible()


def test_hundreds_of_slices_are_dots_and_zoomed(page: Page, script: Script) -> None:
    for number in range(20, 400):
        one = script.answer.slices.add()
        one.CopyFrom(script.answer.slices[0])
        one.id, one.node_pool = f"slice-{number}", f"rack-{number // 100}"
    page.get_by_role("link", name="Slices", exact=True).click()
    expect(page.get_by_role("button", name="Dots")).to_have_attribute("aria-pressed", "true")
    pool = page.locator(".pool").filter(has_text="Node pool rack-2")
    expect(pool.get_by_role("listitem")).to_have_count(100)
    dot = pool.get_by_role("listitem").first
    box = dot.bounding_box()
    assert box is not None
    assert box["width"] < 20
    expect(dot).to_have_attribute("title", re.compile("slice-200\nheld for .*\nada-train-0"))
    page.get_by_role("button", name="Large").click()
    larger = dot.bounding_box()
    assert larger is not None
    assert larger["width"] > 150


def test_a_slow_host_is_marked_on_its_slice_and_its_connection(page: Page, script: Script) -> None:
    held = next(one for one in script.answer.slices if one.tenant)
    del held.workers[:]
    held.workers.extend(
        pb.WorkerStatus(
            host_index=host,
            host=f"node-{host}",
            executor=pb.ExecutorStatus(generation=1, state="serving", slow=slow, time_ratio=ratio),
        )
        for host, slow, ratio in ((0, False, 0.31), (1, True, 3.246))
    )
    page.get_by_role("link", name="Slices", exact=True).click()
    marks = page.locator(".grid small.slow")
    expect(marks).to_have_text(["host 1 is slow 3.25x"])
    tile = page.locator(".grid li.has-slow")
    expect(tile).to_contain_text(held.id)
    expect(tile).to_have_attribute("title", re.compile("\nhost 1 is slow 3.25x$"))
    expect(tile).to_have_css("outline-style", "solid")
    colours = [one.evaluate(COLOUR) for one in (marks, tile.locator("small").first)]
    assert colours[0] != colours[1]
    tile.locator(".who").click()
    chips = page.get_by_role("table", name="Executors").locator(".state-chip")
    expect(chips).to_have_text(["0.31x", "slow 3.25x"])
    backs = [one.evaluate(BACK) for one in chips.all()]
    assert backs[0] != backs[1]
    page.get_by_role("link", name="Slices", exact=True).click()
    expect(marks).to_have_text(["host 1 is slow 3.25x"])
    # Until it is not slow any more.
    held.workers[1].executor.slow = False
    held.workers[1].executor.time_ratio = 1
    expect(tile).to_have_count(0)
    expect(marks).to_have_text([""])
    expect(marks).to_be_hidden()
