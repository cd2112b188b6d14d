"""The pages of a connection and of a run, and drawn plans, in Chromium: with hostile names."""

from __future__ import annotations

import re
import time
from pathlib import Path

from playwright.sync_api import Browser, expect

from harness.web_page import TOKEN, Script, page_of
from shared_pathways_service.events import rfc3339
from shared_pathways_service.metrics.families import Family, Sample
from shared_pathways_service.operations.service_readers.base import LogRequest, ShowLine
from shared_pathways_service.operations.service_readers.shown_counters import (
    Counters,
    ProxyCounters,
)
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from tests.elastic.accounting.telling import Process
from tests.web.samples import HOSTILE, KIND, sample, slice_of


class Telling(Script):
    """A service that shows counters and logs."""

    has_counters = True
    lines: tuple[str, ...] = (f"line 1 {HOSTILE}",)

    def counters(self, name: str | None) -> Counters:
        assert name is not None
        memory = "sps_proxy_device_memory"
        families = [
            Family(f"{memory}_bytes", "gauge", "", [Sample(512 << 20, {"device": "0"})]),
            Family(f"{memory}_limit_bytes", "gauge", "", [Sample(1 << 30)]),
            Family("sps_proxy_late_callback_seconds", "gauge", "", [Sample(3, {"at": HOSTILE})]),
        ]
        return {name: ProxyCounters({}, families)}

    def show_logs(self, wanted: LogRequest, show: ShowLine) -> None:
        for line in self.lines:
            show("", line)


def test_a_connection_shows_its_state_counters_and_log(browser: Browser) -> None:
    script = Telling(answer=sample().answer)
    with browser.new_context() as context, page_of(script) as port:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}#tenants")
        tenants = page.get_by_role("table", name="All tenants")
        tenants.get_by_role("link", name="ada-job").click()
        facts = page.get_by_role("region", name="The connection")
        expect(facts).to_contain_text(f"{HOSTILE}@laptop")
        expect(page.get_by_role("table", name="Slices", exact=True)).to_contain_text("slice-0")
        memory = page.get_by_role("table", name="Memory of the devices")
        expect(memory.get_by_role("row").nth(1)).to_have_text(re.compile("0.*512 MiB.*1.0 GiB"))
        page.get_by_text("All counters").click()
        counters = page.get_by_role("table", name="Counters of the proxy")
        expect(counters).to_contain_text(f"sps_proxy_late_callback_seconds {HOSTILE}")
        log = page.locator("pre.log")
        expect(log).to_have_text(f"line 1 {HOSTILE}")
        # Live: the log is read again, and the state follows the service.
        script.lines = (*script.lines, "line 2")
        script.answer.tenants[0].state = "preempted"
        expect(facts).to_contain_text("preempted")
        expect(log).to_contain_text("line 2")
        assert page.locator("main img, main script").count() == 0
        del script.answer.tenants[0]
        expect(page.get_by_text("The service has no connection of this name")).to_be_visible()
        # What its devices held is drawn from when the page was opened.
        expect(page.get_by_role("img", name="The devices hold 512 MiB.")).to_be_visible()


def test_a_connections_executors_are_shown_with_what_they_use(browser: Browser) -> None:
    script = Telling(answer=sample().answer)
    used = pb.ExecutorUsage(
        generation=1,
        resident_bytes=512 << 20,
        memory_limit_bytes=8 << 30,
        cpu_seconds=90.25,
        cpu_percent=150,
    )
    serving = pb.ExecutorStatus(generation=1, state="serving", pid=7, usage=used)
    serving.time_ratio = 1.042
    older = pb.ExecutorStatus(generation=1, state="starting")
    held = next(one for one in script.answer.slices if one.tenant == "ada-job")
    del held.workers[:]
    held.workers.extend(
        pb.WorkerStatus(host_index=host, executor=one) for host, one in ((0, serving), (1, older))
    )
    with browser.new_context() as context, page_of(script) as port:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}#connection/ada-job")
        rows = page.get_by_role("table", name="Executors").get_by_role("row")
        expect(rows).to_have_count(3)
        cells = rows.nth(1).locator("th, td")
        shown = [held.id, "0", "serving", "512 MiB of 8.0 GiB", "150%", "90.3 s", "1.04x", "7"]
        expect(cells).to_have_text(shown)
        expect(rows.nth(2).locator("th, td")).to_have_text([held.id, "1", "starting", *"-----"])
        # Live, until the last one has ended.
        held.workers[0].executor.usage.cpu_percent = 0
        expect(cells.nth(4)).to_have_text("0%")
        del held.workers[:]
        expect(page.get_by_role("table", name="Executors")).to_be_hidden()


def test_plans_are_drawn_and_told(browser: Browser) -> None:
    script, now = sample(), time.time()
    script.answer.slices.extend(
        [slice_of("slice-20", kept_for="bob-job"), slice_of("slice-21", tenant=HOSTILE)]
    )
    victim = pb.TenantStatus(
        name=HOSTILE, state="running", preemptor="bob-job", preempting_at=rfc3339(now + 600)
    )
    script.answer.tenants.append(victim)
    script.answer.reservations.append(
        pb.ReservationStatus(
            name="r-1", instance_type=KIND, count=1, team="red", starts=now + 3600, ends=now + 7200
        )
    )
    with browser.new_context() as context, page_of(script) as port:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}#tenants")
        plan = page.get_by_role("figure").filter(has_text="bob-job is about to start")
        expect(plan.get_by_role("listitem").first).to_have_text("slice-20 is free and kept for it.")
        expect(plan).to_contain_text(f"slice-21 comes from {HOSTILE}, which is preempted in")
        expect(plan).to_contain_text("For 1 more no slice is known.")
        expect(plan.get_by_role("img")).to_have_attribute(
            "aria-label", re.compile("slice-20 is free")
        )
        reservation = page.get_by_role("figure").filter(has_text="Reservation r-1")
        expect(reservation).to_contain_text("slice-10 is free, and its own in")
        assert page.locator("main img, main script").count() == 0
        # The notice is withdrawn.
        script.answer.tenants[-1].preemptor = ""
        expect(plan).not_to_contain_text("slice-21")


def test_a_run_shows_its_report_and_follows_it(browser: Browser, tmp_path: Path) -> None:
    process = Process()
    process.start(0)
    process.tell(1, "elastic.step", step=1, duration_s=1.0, loss=2.5)
    process.tell(2, "slice.down", slice=HOSTILE)
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text("".join(f"{event.to_json()}\n" for event in process.events))
    with browser.new_context() as context, page_of(sample(), runs=[str(tmp_path)]) as port:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}")
        page.get_by_role("link", name="Training").click()
        expect(page.get_by_role("table", name="Lost slices")).to_contain_text(HOSTILE)
        picture = page.get_by_role("region", name="Loss", exact=True).locator(".chart")
        expect(picture).to_have_attribute("aria-label", re.compile(r"Loss from 2\.5 at step 1"))
        expect(page.get_by_role("list", name="Events of the run")).to_have_text("lost")
        process.tell(3, "elastic.step", step=2, duration_s=1.0, loss=0.5)
        ledger.write_text("".join(f"{event.to_json()}\n" for event in process.events))
        expect(picture).to_have_attribute("aria-label", re.compile(r"to 0\.5 at step 2"))
        page.get_by_text("Loss as a table").click()
        expect(page.get_by_role("table", name="Loss", exact=True).get_by_role("row")).to_have_count(
            3
        )
        assert page.locator("main img, main script").count() == 0
