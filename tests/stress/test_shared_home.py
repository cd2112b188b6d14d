"""The short form of `stress.shared_home`: what is killed on two machines breaks no promise."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from harness.deadlines import deadline
from harness.job_records import job_record
from harness.machines import is_possible
from shared_pathways_service.runtime.embedded.job_files import JobRecord
from stress.shared_home.__main__ import measure
from stress.shared_home.jobs import Note, Submission, faults_of


@pytest.mark.race
@pytest.mark.timeout(900)
@pytest.mark.skipif(not is_possible(), reason="this user may not make namespaces")
def test_what_is_killed_on_two_machines_breaks_no_promise(
    record_property: Callable[[str, object], None],
) -> None:
    seed = random.randrange(1 << 32)
    record_property("seed", seed)
    result = measure(deadline(12.0), seed)
    assert result["broken"] == []
    assert sum(result["kills"].values()) > 0
    assert sum(result["jobs"].values()) > 0


# ---- the checker


@dataclasses.dataclass
class Boot:
    """A boot whose service was killed at some moments."""

    name: str = "here"
    boot_id: str = "b1"
    kills: tuple[float, ...] = ()

    def was_disturbed(self, since: float, until: float = math.inf) -> bool:
        return any(since <= moment <= until for moment in self.kills)


def record_of(state: str, attempt: int, code: int | None = None, **fields: Any) -> JobRecord:
    known = {"state": state, "attempt": attempt, "exit_code": code, "retries": 1, "host": "here"}
    return job_record(**{**known, "ended_at": 9.0, **fields})


def note(what: str, time: float, attempt: int = 1, **more: Any) -> Note:
    about = {"what": what, "time": time, "attempt": attempt, "boot": "b1", "uid": "0f"}
    return {**about, **more}


def faults(
    record: JobRecord | None,
    *notes: Note,
    kills: tuple[float, ...] = (),
    accepted: bool | None = True,
    cancelled_at: float | None = None,
    is_gone: bool = False,
    successor: JobRecord | None = None,
) -> list[str]:
    job = Submission(key="k", name="fit", boot=Boot(kills=kills), retries=1, accepted=accepted)
    job.record, job.cancelled_at = record, cancelled_at
    job.cancel_asked, job.is_gone = cancelled_at is not None, is_gone
    return [*faults_of(job, notes, successor)]


START, FAILED, SUCCEEDED = note("start", 2.0), note("end", 3.0, code=3), note("end", 3.0, code=0)
AGAIN = note("start", 4.0, 2)
FAILED_AGAIN, SUCCEEDED_THEN = note("end", 5.0, 2, code=3), note("end", 5.0, 2, code=0)


def test_jobs_that_are_as_their_records_say_have_no_faults() -> None:
    assert faults(record_of("succeeded", 1, 0), START, SUCCEEDED) == []
    assert faults(record_of("succeeded", 2, 0), START, FAILED, AGAIN, SUCCEEDED_THEN) == []
    assert faults(record_of("failed", 2, 3), START, FAILED, AGAIN, FAILED_AGAIN) == []
    assert faults(record_of("cancelled", 1), START, cancelled_at=2.5) == []
    assert faults(record_of("cancelled", 0), cancelled_at=2.5) == []
    # The next service does not know what happened before the kill.
    assert faults(record_of("lost", 2), START, AGAIN, kills=(3.0, 4.5)) == []
    again = (START, SUCCEEDED, AGAIN, SUCCEEDED_THEN)
    assert faults(record_of("succeeded", 2, 0), *again, kills=(3.5,)) == []
    # Its program goes on for a moment, and may end by itself.
    assert faults(record_of("lost", 2), START, FAILED, AGAIN, FAILED_AGAIN, kills=(4.5,)) == []
    assert faults(record_of("succeeded", 2, 0), *again, kills=(2.5,)) == []
    # How a job ended whose name was used again may not have been seen.
    active, then = record_of("running", 1, ended_at=None), record_of("queued", 1, submitted_at=3.5)
    assert faults(active, START, SUCCEEDED, is_gone=True, successor=then) == []
    assert faults(None, accepted=False) == []
    assert faults(None, accepted=None) == []


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (faults(record_of("succeeded", 1, 0), START), "its record says succeeded"),
        (faults(record_of("failed", 2, 3), START, SUCCEEDED), "its record says failed"),
        (faults(record_of("failed", 1, 3), START, FAILED), "its record says failed"),
        (faults(record_of("lost", 2), START), "its record says lost"),
        (faults(record_of("lost", 1), START, kills=(2.5,)), "its record says lost"),
        (
            faults(record_of("lost", 2), START, AGAIN, note("end", 99.0, 2, code=0), kills=(4.5,)),
            "its record says lost",
        ),
        (faults(record_of("running", 1), START), "its record says running"),
        (faults(record_of("cancelled", 1), START), "its record says cancelled"),
        (
            faults(record_of("succeeded", 2, 0), START, SUCCEEDED, AGAIN, SUCCEEDED_THEN),
            "it had succeeded, and was started again",
        ),
        (
            faults(record_of("cancelled", 1), START, SUCCEEDED, cancelled_at=2.5),
            "cancelled at 2.5, it went on",
        ),
        (faults(record_of("succeeded", 1, 0), AGAIN, SUCCEEDED_THEN), "only 1 attempts"),
        (
            faults(record_of("succeeded", 1, 0), START, note("end", 3.0, code=0, boot="b2")),
            "it ran on another machine",
        ),
        (
            faults(record_of("succeeded", 1, 0), START, note("twice", 2.5), SUCCEEDED),
            "two runs at once",
        ),
        (
            faults(record_of("succeeded", 1, 0), START, START, SUCCEEDED, kills=(2.5,)),
            "an attempt ran twice",
        ),
        (
            faults(record_of("lost", 3), START, AGAIN, note("start", 5.0, 3), kills=(3, 4.5, 6)),
            "3 attempts with 1 retries",
        ),
        (
            faults(record_of("succeeded", 1, 0), START, note("end", 3.0, code=0, uid="0e")),
            "under two ids",
        ),
        (faults(record_of("cancelled", 0), accepted=False, cancelled_at=2.0), "it was refused"),
        (faults(record_of("succeeded", 1, 0, host="there"), START, SUCCEEDED), "the host there"),
        (faults(record_of("running", 1, ended_at=None), START, is_gone=True), "record is gone"),
        (
            faults(
                record_of("succeeded", 1, 0),
                START,
                SUCCEEDED,
                successor=record_of("queued", 0, submitted_at=2.5),
            ),
            "beside its successor",
        ),
        (faults(None, START, accepted=None), "it has no record"),
        (faults(None, accepted=True), "it has no record"),
    ],
)
def test_each_fault_of_a_job_is_found(found: list[str], what: str) -> None:
    assert any(what in fault for fault in found), found
