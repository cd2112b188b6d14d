"""Proxies by their Jobs, and which of them nobody owns."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from harness.session_requests import job_inputs
from shared_pathways_service.cluster_state.overview import occupancy, processes
from shared_pathways_service.cluster_state.proxy_jobs import is_proxy, known_proxy, why_kept
from shared_pathways_service.cluster_state.readiness import read_readiness
from shared_pathways_service.cluster_state.services import find_service
from shared_pathways_service.manifests.proxy_job import proxy_job
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from tests.cluster_state import objects

KIND = "tpuv6e:2x2"
BEGAN = "2026-01-01T00:00:00Z"
NOW = datetime.datetime(2026, 1, 1, 0, 10, tzinfo=datetime.UTC).timestamp()
AHEAD_S = 600.0


def job(status: dict[str, Any] | None = None, **different: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "name": "isc-proxy-ann-abcde",
        "namespace": "default",
        "session": "s-1",
        "service_address": "p-pathways-head-0-0.p:29001",
        "service_name": "p",
        "virtual_slices": (KIND, KIND, "tpuv5:2x2x1"),
        "image": "x/proxy_server:1",
        "user": "ann@example.com",
        "host": "laptop",
        "team": "red",
        "created_by_pid": 42,
    }
    made = proxy_job(job_inputs(**{**usual, **different}))
    made["metadata"] |= {"uid": "u-1", "creationTimestamp": BEGAN}
    made["status"] = {"startTime": BEGAN} if status is None else status
    return made


def test_a_job_names_its_owner() -> None:
    proxy = known_proxy(job())
    assert (proxy.name, proxy.uid, proxy.session, proxy.pid) == (
        "isc-proxy-ann-abcde",
        "u-1",
        "s-1",
        42,
    )
    assert proxy.slices == {KIND: 2, "tpuv5:2x2x1": 1}
    assert proxy.holder.service == "p"
    assert proxy.ends_at == NOW
    assert (proxy.keep_for_s, known_proxy(job(keep_for_s=90.0)).keep_for_s) == (None, 90.0)
    bare = known_proxy({"metadata": {"name": "x", "annotations": {"sps.dev/created-by-pid": "-1"}}})
    assert (bare.pid, bare.slices, bare.ends_at, bare.session) == (0, {}, None, "")


def test_what_we_did_not_create_is_no_proxy_of_ours() -> None:
    assert is_proxy(job())
    for label in ("app", "app.kubernetes.io/managed-by"):
        other = job()
        other["metadata"]["labels"][label] = "x"
        assert not is_proxy(other)


@pytest.mark.parametrize(
    ("status", "deleted", "state"),
    [
        ({}, False, "starting"),
        ({"active": 1, "ready": 0}, False, "starting"),
        ({"active": 1, "ready": 1}, False, "running"),
        ({"conditions": [{"type": "Failed", "status": "True"}]}, False, "ended"),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, False, "ended"),
        ({"active": 1, "ready": 1}, True, "deleting"),
    ],
)
def test_states(status: dict[str, Any], deleted: bool, state: str) -> None:
    made = job(status)
    if deleted:
        made["metadata"]["deletionTimestamp"] = BEGAN
    assert known_proxy(made).state == state


def kept(made: dict[str, Any], *, now: float = NOW, **asked: Any) -> str:
    usual: dict[str, Any] = {"user": "ann@example.com", "host": "laptop"}
    return why_kept(
        known_proxy(made),
        is_alive=lambda pid: pid == 7,
        now=now,
        ahead_s=AHEAD_S,
        **{**usual, **asked},
    )


def test_only_certainly_orphaned_proxies_are_reaped() -> None:
    assert kept(job()) == ""
    assert "ann-example.com" in kept(job(), user="bob")
    assert "created on laptop" in kept(job(), host="server")
    assert "does not name" in kept(job(created_by_pid=0))
    assert "process 7 lives" in kept(job(created_by_pid=7))
    # Somebody moved its deadline on, so that it is 9 minutes ahead: not a dead process.
    assert "was just extended" in kept(job(), now=NOW - 540)
    assert "was just extended" in kept(job({}))
    assert kept(job(), now=NOW - 400) == ""
    over = {"startTime": BEGAN, "conditions": [{"type": "Failed", "status": "True"}]}
    assert kept(job(over), now=NOW - 540) == ""
    # One that is kept for two hours has the deadline moved as often.
    two_hours: dict[str, Any] = {"keep_for_s": 7200.0, "deadline_s": 7320}
    began = NOW - 600
    assert "was just extended" in kept(job(**two_hours), now=began + 170)
    assert kept(job(**two_hours), now=began + 190) == ""
    dying = job()
    dying["metadata"]["deletionTimestamp"] = BEGAN
    assert "being deleted" in kept(dying)


def test_a_service_is_read_from_pods_and_labels() -> None:
    jobset = service_jobset(ServiceInputs(name="p", instances={KIND: 2}))
    jobset["metadata"]["uid"] = "j"
    service = find_service([jobset])

    def server(name: str, replicated: str, index: int, container: str, **how: Any) -> Any:
        labels = {
            "jobset.sigs.k8s.io/jobset-name": "p",
            "jobset.sigs.k8s.io/replicatedjob-name": replicated,
            "jobset.sigs.k8s.io/job-index": str(index),
        }
        return objects.pod(name, container=container, labels=labels, **how)

    ready = {"ready": True, "phase": "Running", "status": objects.RUNNING}
    pods = [
        server("w0", "worker", 0, "pathways-worker", **ready),
        server("w1", "worker", 1, "pathways-worker", node=""),
        server("h", "pathways-head", 0, "pathways-rm", **ready),
        objects.running("x", labels={"batch.kubernetes.io/job-name": "isc-proxy-ann-abcde"}),
        objects.running("stranger", labels={"batch.kubernetes.io/job-name": "other"}),
    ]
    proxies = [known_proxy(job())]
    found = read_readiness(service, pods)
    told = processes(found, pods, proxies)
    assert [(p["role"], p["pod"], p["slice"], p["state"]) for p in told] == [
        ("rm", "h", None, "ready"),
        ("worker", "w0", "worker-0", "ready"),
        ("worker", "w1", "worker-1", "it waits for a node"),
        ("proxy", "x", None, "ready"),
    ]
    assert told[-1]["name"] == "isc-proxy-ann-abcde"
    holding = occupancy(found, proxies)
    assert [(s["id"], s["state"]) for s in holding["slices"]] == [
        ("worker-0", "ready"),
        ("worker-1", "starting"),
    ]
    [tenant] = holding["tenants"]
    assert (tenant["user"], tenant["team"], tenant["priority"]) == ("ann-example.com", "red", None)
    assert [s["instance_type"] for s in tenant["slices"]] == [KIND, KIND, "tpuv5:2x2x1"]
