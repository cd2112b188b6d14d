"""Runs reported from hand-written events."""

from __future__ import annotations

from shared_pathways_service.elastic.accounting.goodput import Report, report_of
from tests.elastic.accounting.telling import Process


def reported(*processes: Process) -> Report:
    report = report_of([event for process in processes for event in process.events])
    assert report is not None
    return report


def spent(report: Report) -> dict[str, float]:
    """What time went on, to the millisecond, without what it did not go on."""
    told = {cause.value: round(s, 3) for cause, s in report.badput_s.items() if round(s, 3)}
    return {"good": round(report.good_s, 3), **told}


def lost_slice() -> Process:
    """Ten steps; slice 1 goes at 10.4 and is seen at 11; back to step 6 with two slices."""
    process = Process()
    process.start(0)
    process.steps(0, 1, 10)
    process.tell(11, "slice.suspect", slice=1)
    process.tell(11.5, "slice.down", slice=1)
    process.tell(12, "elastic.error", step=10, verdict="slice", decision="retry", slices="1")
    process.tell(12.5, "elastic.retry", step=10, attempt=2, cause="slice_down")
    process.tell(13, "elastic.wait.started", have=2, want=3)
    process.tell(16, "elastic.wait.done", duration_s=3.0, have=3, want=3)
    process.attempt(16, "0,2", attempt=2, duration_s=3.5, down_events=1)
    process.tell(17.25, "elastic.restored", step=6, duration_s=1.0, origin="checkpoint")
    process.tell(20.25, "elastic.step", step=7, duration_s=2.75, first=True)
    process.steps(20.25, 8, 12)
    return process
