"""`sps reap` in a cluster: only proxies of ended programs are deleted."""

from __future__ import annotations

import os
import platform
import signal
from typing import Any

from harness.deadlines import wait_until
from harness.programs import sps_failing, sps_json
from harness.session_requests import job_inputs
from harness.testbed.clients import KIND, deployed, journal, nothing_left, proxies
from shared_pathways_service.agent.request import user_name
from shared_pathways_service.manifests.proxy_inputs import ProxyJobInputs
from shared_pathways_service.manifests.proxy_job import proxy_job
from shared_pathways_service.testing.testbed import Namespace
from tests.testbed.operating.cli import holder

JOBS = "batch/v1/jobs"
ENDED_PID = 2**22 + 1  # more than Linux gives


def test_leftovers_of_a_dead_program_are_reaped(namespace: Namespace, place: list[str]) -> None:
    deployed(namespace, 1)
    with holder(namespace) as (running, name, _):
        assert sps_json("reap", *place) == []
        [entry] = journal()
        os.kill(entry.agent.pid, signal.SIGKILL)
        running.signal(signal.SIGKILL)
        wait_until("both to be dead", lambda: entry.abandoned)
        [found] = sps_json("reap", "--dry-run", *place)
        assert (found["name"], found["outcome"]) == (name, "would be deleted")
        assert proxies(namespace)
        [found] = sps_json("reap")
        assert (found["name"], found["outcome"]) == (name, "deleted")
    nothing_left(namespace)


def test_only_own_dead_proxies_are_reaped_by_labels(namespace: Namespace, place: list[str]) -> None:
    # Nobody runs them: no image of theirs can be pulled, which the labels do not care about.
    made: dict[str, dict[str, Any]] = {
        "dead": {},
        "fresh": {"deadline_s": 600},
        "alive": {"created_by_pid": os.getpid()},
        "elsewhere": {"host": "another-machine"},
        "untold": {"created_by_pid": 0},
        "others": {"user": "somebody-else"},
    }
    for name, different in made.items():
        _create_proxy(namespace, name, **different)
    foreign = proxy_job(_inputs(namespace, "foreign"))
    del foreign["metadata"]["labels"]["app.kubernetes.io/managed-by"]
    namespace.create(JOBS, foreign)
    namespace.wait_until(
        JOBS, lambda jobs: all(j["status"].get("startTime") for j in jobs), what="start of each"
    )
    assert {item["name"] for item in sps_json("list", *place)} == {*made} - {"others"}
    assert {item["name"] for item in sps_json("list", "--all", *place)} == {*made}
    found = {item["name"]: item for item in sps_json("reap", *place)}
    assert {name: item["outcome"] for name, item in found.items()} == {
        "dead": "deleted",
        "fresh": "kept",
        "alive": "kept",
        "untold": "kept",
    }
    assert "just extended" in found["fresh"]["reason"]
    left = {job["metadata"]["name"] for job in namespace.items(JOBS)}
    assert left == {*made, "foreign"} - {"dead"}

    # By name, too: what is nobody's is not asked about, others' is, and no other Job is touched.
    assert sps_failing("delete", "foreign", *place)[0] == 3
    code, err = sps_failing("delete", "others", *place)
    assert code == 2
    assert "somebody-else" in err
    assert sps_json("delete", "others", "--yes", *place)["deleted"]


def _inputs(namespace: Namespace, name: str, **different: Any) -> ProxyJobInputs:
    usual: dict[str, Any] = {
        "name": name,
        "namespace": namespace.name,
        "session": f"session-of-{name}",
        "service_address": "pathways-pathways-head-0-0.pathways:29001",
        "virtual_slices": (KIND,),
        "image": "testbed/none:1",
        "user": user_name(),
        "host": platform.node(),
        "created_by_pid": ENDED_PID,
        "deadline_s": 300,
    }
    return job_inputs(**{**usual, **different})


def _create_proxy(namespace: Namespace, name: str, **different: Any) -> None:
    namespace.create(JOBS, proxy_job(_inputs(namespace, name, **different)))
