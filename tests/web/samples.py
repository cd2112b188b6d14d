"""Services that the tests of the page show: a small one with hostile names, and one of a team."""

from __future__ import annotations

import time
from typing import Any, Final

from harness.processes import REPOSITORY
from harness.web_page import Jobs, Script
from shared_pathways_service.api.job_requests import JobStatus
from shared_pathways_service.events import rfc3339
from shared_pathways_service.protocol import resource_manager_pb2 as pb

__all__ = [
    "HOSTILE",
    "KIND",
    "LOAD",
    "RUN",
    "decision",
    "job",
    "jobs",
    "sample",
    "slice_of",
    "team_sample",
]

KIND: Final = "tpuv6e:2x2"
HOSTILE: Final = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
RUN: Final = str(REPOSITORY / "tests" / "cli" / "sample_run")
_GIB: Final = 1 << 30
LOAD: Final = {
    "memory": {"used_bytes": 3 * _GIB, "total_bytes": 24 * _GIB},
    "disk": {"free_bytes": 60 * _GIB, "total_bytes": 250 * _GIB, "directory": "/var/lib/sps"},
}
_USERS: Final = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal", "ivy", "joe", "kim")
_TEAMS: Final = ("vision", "language", "robots")


def decision(at: float, kind: str, tenant: str | None = None, **fields: Any) -> pb.EventMessage:
    data = fields.pop("data", {})
    message = pb.EventMessage(
        kind=kind, source="rm", time=rfc3339(at), tenant=tenant, sequence=round(at), **fields
    )
    message.data.update(data)
    return message


def slice_of(name: str, state: str = "ready", **fields: Any) -> pb.SliceStatus:
    since = rfc3339(time.time() - 100)
    return pb.SliceStatus(id=name, instance_type=KIND, state=state, since=since, **fields)


def sample() -> Script:
    """A service with a slice of each kind, a holder and a waiting tenant with hostile names."""
    since = rfc3339(time.time() - 300)
    held: dict[str, Any] = {
        "virtual_index": 0,
        "held_since": since,
        "workers": [pb.WorkerStatus(host="node-7")],
    }
    answer = pb.GetStatusResponse(
        state="serving",
        spares=1,
        since=since,
        slices=[
            slice_of("slice-0", tenant="ada-job", **held),
            slice_of("slice-1", "cordoned", node_pool=HOSTILE),
            slice_of("slice-2", "lost"),
            slice_of("slice-3", "draining", tenant="ada-job", virtual_index=1),
            slice_of("slice-10"),
            slice_of("slice-11"),
        ],
        tenants=[
            pb.TenantStatus(
                name="ada-job", user=HOSTILE, host="laptop", team="blue", state="running",
                since=since, slices=[pb.VirtualSliceStatus(index=0, slice_id="slice-0")],
            ),
            pb.TenantStatus(name="bob-job", user="bob", state="waiting", since=since),
            pb.TenantStatus(name=HOSTILE, team=HOSTILE, state="running", since=since),
        ],
        queue=[
            pb.QueueEntry(
                tenant="bob-job", position=1, wants={KIND: 3}, reason=f"no slice {HOSTILE}",
                expected_wait_s=120.0,
            )
        ],
    )  # fmt: skip
    now = time.time()
    data = {"user": HOSTILE, "instance_type": KIND}
    ended = decision(
        now - 600, "slice.unplaced", "old-job", slice="slice-2", duration_s=1200.0, data=data
    )
    lost = decision(now - 599, "slice.lost", slice="slice-2", reason=HOSTILE)
    usage = pb.GetUsageResponse(
        since=rfc3339(now - 3600), until=rfc3339(now), window_s=3600.0, capacity={KIND: 6},
        rows=[pb.UsageRow(name=HOSTILE, slice_s=7200.0, waiting_s=60.0, holdings=2, waits=1)],
    )  # fmt: skip
    return Script(answer=answer, decisions=[ended, lost], usage=usage)


def job(name: str, state: Any, now: float | None = None, **fields: Any) -> JobStatus:
    """A submitted job; times are given in seconds before now, or another time."""
    now = time.time() if now is None else now
    ages = {"submitted": 4000.0, "started": 3900.0, "ended": None, **fields}
    times = {
        key: None if ages[key] is None else rfc3339(now - ages[key])
        for key in ("submitted", "started", "ended")
    }
    usual: dict[str, Any] = {
        "home": "embedded",
        "command": ("python", "train.py", "--steps=1000"),
        "workdir": "/home/ada/digits",
        "slices": {KIND: 2},
        "attempt": 1,
        "retries": 2,
        "exit_code": None,
        "reason": "",
        "host": "lab-1",
    }
    return JobStatus(name=name, state=state, **{**usual, **fields, **times})


def jobs(now: float | None = None) -> Jobs:
    """A job in each state that a team sees on a usual day, with an output in colours."""
    found = Jobs(
        job("train-1", "succeeded", now, ended=900.0, exit_code=0),
        job(
            "train-2", "failed", now, ended=600.0, exit_code=1, attempt=3,
            reason="the program ended with exit code 1",
        ),
        job("sweep-1", "running", now, attempt=2),
        job("eval-1", "queued", now, submitted=50.0, started=None, attempt=0),
    )  # fmt: skip
    found.written = [
        "\x1b[1mstep 1\x1b[0m loss \x1b[32m2.31\x1b[0m",
        f"\x1b]0;{HOSTILE}\x07step 2 loss 2.07",
        " 10 %\r 50 %\r\x1b[2K100 %",
        f"\x1b[31mWARNING\x1b[39m {HOSTILE}",
    ]
    return found


def team_sample(now: float | None = None) -> Script:
    """Twenty slices of three types in two node pools, eleven users of three teams, a queue."""
    now = time.time() if now is None else now
    kinds = ["tpuv6e:2x2"] * 10 + ["tpuv5e:1x1"] * 6 + ["tpuv6e:4x4"] * 4
    answer = pb.GetStatusResponse(state="serving", spares=1, since=rfc3339(now - 3000))
    decisions = []
    for number, kind in enumerate(kinds):
        one = answer.slices.add(
            id=f"slice-{number}",
            instance_type=kind,
            state={3: "lost", 14: "cordoned"}.get(number, "ready"),
            since=rfc3339(now - 3000),
            node_pool="pool-a" if number < 10 else "pool-b",
            workers=[pb.WorkerStatus(host=f"node-{number}")],
        )
        began = now - 200 - 60 * number
        team = _TEAMS[number % 3]
        if number not in (3, 8, 9, 14, 15, 19):
            user = _USERS[number % 11]
            one.tenant, one.virtual_index = f"{user}-train-{number}", 0
            one.held_since = rfc3339(began)
            answer.tenants.add(
                name=one.tenant, user=user, host="laptop", team=team, priority=number % 3,
                state="running", since=rfc3339(began), connected=True,
                slices=[pb.VirtualSliceStatus(slice_id=one.id, instance_type=kind, state="placed")],
            )  # fmt: skip
        before = _USERS[number * 3 % 11]
        decisions.append(
            decision(
                began - 20, "slice.freed", f"{before}-sweep-{number}", slice=one.id,
                duration_s=300.0 + 60 * (number * 7 % 13),
                data={"user": before, "team": team, "instance_type": kind},
            )
        )  # fmt: skip
    decisions.append(decision(now - 700, "slice.lost", slice="slice-3", reason="no answer"))
    decisions.append(decision(now - 500, "slice.cordoned", slice="slice-14", reason="operator"))
    waiting = (
        ("kim", kinds[16], 2, 240.0),
        ("joe", kinds[0], 4, 480.0),
        ("ivy", kinds[10], 1, 0.0),
    )
    for place, (user, kind, count, expected) in enumerate(waiting):
        answer.tenants.add(
            name=f"{user}-wait", user=user, host="desk", team=_TEAMS[place], state="waiting",
            since=rfc3339(now - 90 * (place + 1)), connected=True,
        )  # fmt: skip
        entry = answer.queue.add(
            tenant=f"{user}-wait", position=1, wants={kind: count},
            reason=f"waits for {count} of {kind}",
        )  # fmt: skip
        if expected:
            entry.expected_wait_s = expected
    answer.reservations.add(
        name="res-a169d3a9", instance_type=kinds[10], count=3, user="ada",
        starts=now + 3600, ends=now + 9 * 3600, held=1,
    )  # fmt: skip
    usage = pb.GetUsageResponse(
        since=rfc3339(now - 3000), until=rfc3339(now), window_s=3000.0,
        capacity={kinds[0]: 10, kinds[10]: 6, kinds[16]: 4},
        rows=[
            pb.UsageRow(
                name=user, slice_s=600.0 + 400 * (place * 5 % 11), waiting_s=40.0 * place,
                holdings=1 + place % 5, waits=place % 4,
            )
            for place, user in enumerate(_USERS)
        ],
    )  # fmt: skip
    decisions.sort(key=lambda one: one.time)
    for number, made in enumerate(decisions, 1):
        made.sequence = number
    return Script(answer=answer, decisions=decisions, usage=usage, log=["serving on port 29000"])
