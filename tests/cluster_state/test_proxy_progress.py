from __future__ import annotations

from typing import Any

import pytest

from shared_pathways_service.cluster_state.proxy_progress import (
    Outcome,
    ProxyProgress,
    Stage,
    read_progress,
)
from shared_pathways_service.runtime.last_requests import HEADER
from tests.cluster_state import objects
from tests.cluster_state.objects import Object, event, failed, job


def of(pod: Object, **status: Any) -> ProxyProgress:
    return read_progress(job(**status), [pod])


def test_what_is_waited_for_is_said() -> None:
    assert read_progress(job()).reason == "its pod is not created yet"
    suspended = job()
    suspended["spec"]["suspend"] = True
    assert "suspended" in read_progress(suspended).reason
    scheduling = of(objects.unschedulable(message="0/3 nodes are available: 3 Insufficient cpu"))
    assert (scheduling.stage, scheduling.outcome) == (Stage.WAITING, Outcome.UNSCHEDULABLE)
    assert "3 Insufficient cpu" in scheduling.reason
    pulling = of(objects.waiting("ImagePullBackOff", "i/o timeout"))
    assert (pulling.stage, pulling.outcome) == (Stage.WAITING, Outcome.IMAGE)


def with_link(state: Object, **status: Any) -> Object:
    """A pod whose proxy waits for the sidecar of its link, which is in a state."""
    pod = objects.waiting("PodInitializing")
    beside = {"name": "sps-link", "image": "r.io/python:1", "state": state, **status}
    pod["status"]["initContainerStatuses"] = [beside]
    return pod


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"waiting": {"reason": "ErrImagePull", "message": "i/o timeout"}}, "r.io/python:1"),
        ({"waiting": {"reason": "ImagePullBackOff"}}, "ImagePullBackOff"),
        ({"waiting": {"reason": "InvalidImageName"}}, "InvalidImageName"),
        ({"waiting": {"reason": "CreateContainerConfigError"}}, "CreateContainerConfigError"),
        ({"terminated": {"exitCode": 2}}, "exit code 2"),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, "crashes repeatedly"),
    ],
)
def test_a_link_that_does_not_start_ends_the_proxy(state: Object, said: str) -> None:
    progress = of(with_link(state))
    assert (progress.stage, progress.outcome) == (Stage.ENDED, Outcome.LINK)
    assert progress.reason.startswith("the sidecar of its link, sps-link, does not start: ")
    assert said in progress.reason


@pytest.mark.parametrize(
    "state", [{"waiting": {"reason": "PodInitializing"}}, {"running": {}}, {}], ids=str
)
def test_a_link_that_starts_is_waited_for(state: Object) -> None:
    assert of(with_link(state)).stage is Stage.WAITING


def test_a_running_proxy_does_not_end_with_its_link() -> None:
    pod = objects.running()
    ended = {"name": "sps-link", "state": {"terminated": {"exitCode": 137}}}
    pod["status"]["initContainerStatuses"] = [ended]
    assert of(pod).stage is Stage.RUNNING


def test_the_kubelets_events_say_why_a_container_is_not_started() -> None:
    pod = objects.waiting("ContainerCreating")
    events = [
        event("uid-p", "FailedMount", "secret not found", "2026-01-01T00:00:02Z"),
        event("uid-p", "FailedMount", "older", "2026-01-01T00:00:01Z"),
        event("uid-p", "Scheduled", "to node-1", "2026-01-01T00:00:03Z"),
        event("uid-other", "FailedMount", "another's", "2026-01-01T00:00:04Z"),
    ]
    progress = read_progress(job(), [pod], events)
    assert progress.stage is Stage.WAITING
    assert progress.reason.endswith("secret not found")


def test_a_proxy_that_runs() -> None:
    progress = of(objects.running("j-abc"))
    assert progress == ProxyProgress(stage=Stage.RUNNING, pod="j-abc", node="node-1")


def test_a_node_that_does_not_answer_may_come_back() -> None:
    progress = of(objects.pod(status=objects.RUNNING, phase="Running"))
    assert (progress.stage, progress.outcome) == (Stage.RUNNING, Outcome.NODE_LOST)
    assert "node-1 does not answer" in progress.reason


@pytest.mark.parametrize(
    ("pod", "outcome", "code"),
    [
        (objects.waiting("ErrImagePull", "manifest unknown"), Outcome.IMAGE, None),
        (objects.waiting("CreateContainerConfigError", "no"), Outcome.CONFIG, None),
        (objects.ended(69), Outcome.CRASHED, 69),
        (objects.ended(137), Outcome.CRASHED, -9),
        (objects.ended(0), Outcome.COMPLETED, 0),
        (objects.disrupted("EvictionByEvictionAPI"), Outcome.EVICTED, None),
        (objects.disrupted("DeletionByTaintManager"), Outcome.NODE_LOST, None),
        (objects.pod(status=objects.RUNNING, deleted=True), Outcome.POD_DELETED, None),
    ],
)
@pytest.mark.parametrize("said", [False, True], ids=["pod", "pod-and-job"])
def test_ends_that_the_pod_reports(
    pod: Object, outcome: Outcome, code: int | None, said: bool
) -> None:
    conditions = failed("BackoffLimitExceeded", "Job has reached the limit") if said else []
    progress = of(pod, conditions=conditions)
    assert (progress.stage, progress.outcome) == (Stage.ENDED, outcome)
    assert progress.exit_code == code
    assert progress.reason
    assert progress.pod == "p"


def test_the_end_of_the_log_is_kept() -> None:
    assert of(objects.ended(1)).log_tail == ("a", "b")


def test_what_it_was_at_when_it_crashed_is_in_its_message() -> None:
    crashed = objects.ended(139)
    terminated = crashed["status"]["containerStatuses"][0]["state"]["terminated"]
    terminated["message"] = f"{HEADER}   \n\nat jit_step on slice 0  \n 8 b\n 7 a\n"
    progress = of(crashed)
    assert progress.exit_code == -11
    assert progress.reason == (
        "it was ended by signal 11 while it was running jit_step on slice 0; its last "
        "requests, newest first: b, a"
    )
    # Its log is asked for.
    assert progress.log_tail == ()


def test_why_the_resource_manager_refuses_a_proxy_is_the_reason() -> None:
    refused = objects.ended(69)
    terminated = refused["status"]["containerStatuses"][0]["state"]["terminated"]
    terminated["message"] = "I a\nE the RM refuses this proxy: PERMISSION_DENIED: no token\nI b\n"
    progress = of(refused)
    assert progress.reason == "the resource manager refuses it: no token"
    assert progress.log_tail[0] == "I a"


def test_quota_and_refusals_are_in_the_jobs_events() -> None:
    quota = 'pods "j-x" is forbidden: exceeded quota: q, requested: memory=32Gi'
    security = 'pods "j-x" is forbidden: violates PodSecurity "restricted:latest"'
    limits = (
        'Error creating: Pod "j-x" is invalid: spec.containers[0].resources.requests: '
        'Invalid value: "8": must be less than or equal to cpu limit of 1'
    )
    for message, outcome in (
        (quota, Outcome.QUOTA),
        (security, Outcome.FORBIDDEN),
        (limits, Outcome.FORBIDDEN),
    ):
        progress = read_progress(job(), [], [event("uid-j", "FailedCreate", message)])
        assert (progress.stage, progress.outcome) == (Stage.ENDED, outcome)
        assert progress.reason == message
    passing = read_progress(job(), [], [event("uid-j", "FailedCreate", "timed out")])
    assert (passing.stage, passing.reason) == (Stage.WAITING, "timed out")
    others = read_progress(job(), [], [event("uid-k", "FailedCreate", quota)])
    assert others.stage is Stage.WAITING


@pytest.mark.parametrize("pods", [[], [objects.running()], [objects.ended(137, deleted=True)]])
@pytest.mark.parametrize("gone", [None, job(deleted=True)], ids=["gone", "going"])
def test_a_job_that_was_deleted(gone: Object | None, pods: list[Object]) -> None:
    progress = read_progress(gone, pods)
    assert (progress.stage, progress.outcome) == (Stage.ENDED, Outcome.DELETED)


@pytest.mark.parametrize("kind", ["Failed", "FailureTarget"])
def test_a_deadline_that_was_not_extended(kind: str) -> None:
    progress = of(
        objects.running(deleted=True),
        conditions=failed("DeadlineExceeded", "Job was active longer", kind),
    )
    assert (progress.stage, progress.outcome) == (Stage.ENDED, Outcome.DEADLINE)
    assert "deadline" in progress.reason


def test_a_pod_that_is_gone_without_a_trace() -> None:
    for status in (
        {"conditions": failed("BackoffLimitExceeded")},
        {"failed": 1},
        {"uncountedTerminatedPods": {"failed": ["uid-p"]}},
    ):
        progress = read_progress(job(**status))
        assert (progress.stage, progress.outcome) == (Stage.ENDED, Outcome.POD_DELETED)


def test_a_job_that_failed_for_a_reason_of_its_own() -> None:
    progress = of(objects.running(), conditions=failed("Odd", "nobody knows"))
    assert (progress.stage, progress.reason) == (Stage.ENDED, "nobody knows")


def test_a_job_that_is_complete() -> None:
    done = job(conditions=[{"type": "Complete", "status": "True"}])
    progress = read_progress(done, [objects.ended(0)])
    assert (progress.stage, progress.outcome) == (Stage.ENDED, Outcome.COMPLETED)


def test_a_proxy_that_is_taken_away_and_ends_well_did_not_end_by_itself() -> None:
    done = job(conditions=[{"type": "Complete", "status": "True"}])
    evicted = objects.disrupted("EvictionByEvictionAPI", "drained")
    assert read_progress(done, [evicted]).outcome is Outcome.EVICTED
    deleted = objects.ended(0, deleted=True)
    assert read_progress(done, [deleted]).outcome is Outcome.POD_DELETED
    assert read_progress(done).outcome is Outcome.COMPLETED


def test_the_newest_pod_counts() -> None:
    old = objects.ended(1, "old", created="2026-01-01T00:00:00Z")
    new = objects.running("new", created="2026-01-01T00:00:09Z")
    assert read_progress(job(), [new, old]).pod == "new"
