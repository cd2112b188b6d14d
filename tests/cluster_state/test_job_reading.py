"""The state of a submitted job, from its Job and its pods."""

from __future__ import annotations

from typing import Any

import pytest

from shared_pathways_service.cluster_state.job_ends import AttemptReport
from shared_pathways_service.cluster_state.job_reading import job_status
from shared_pathways_service.manifests import names

REFUSED = AttemptReport(refused="no slices").to_text()
CRASHES = "it crashes repeatedly (2 restarts): it ended with exit code 1"
NO_BUCKET = "the bucket of its --gcs_scratch_location does not exist"
MISSING = "The specified bucket does not exist.; Error while initializing persistent cache storage"
LOST = AttemptReport(started=1.5, lost="its container has ended").to_text()


def job(*conditions: str, failed: int = 0, cancelled: bool = False) -> dict[str, Any]:
    annotations = {
        names.ANNOTATION_COMMAND: '["python", "train.py"]',
        names.ANNOTATION_INSTANCES: "tpuv6e:2x2=2",
    }
    if cancelled:
        annotations[names.ANNOTATION_CANCELLED] = "true"
    return {
        "metadata": {"name": "train", "annotations": annotations, "creationTimestamp": "T0"},
        "spec": {"backoffLimitPerIndex": 2},
        "status": {
            "failed": failed,
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "T9", "message": "why"}
                for kind in conditions
            ],
        },
    }


def pod(
    state: dict[str, Any] | None = None, *, ready: bool = False, name: str = "a", **status: Any
) -> dict[str, Any]:
    ready_condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": "T5"}
    container = {"name": names.JOB_CONTAINER, "state": state or {}}
    return {
        "metadata": {"name": name, "creationTimestamp": "T1"},
        "spec": {"nodeName": "node", "restartPolicy": "Never"},
        "status": {"conditions": [ready_condition], "containerStatuses": [container], **status},
    }


def ended(code: int, message: str = "", **more: Any) -> dict[str, Any]:
    terminated = {"exitCode": code, "message": message, **more}
    return pod({"terminated": terminated}, phase="Failed" if code else "Succeeded")


def ending(code: int, *, failed_before: int = 0) -> dict[str, Any]:
    """Returns a pod whose program has ended, and its proxy not yet."""
    found = pod({"terminated": {"exitCode": code}}, phase="Running")
    count = {"batch.kubernetes.io/job-index-failure-count": str(failed_before)}
    return {**found, "metadata": {**found["metadata"], "annotations": count}}


def crashed_proxy(
    of: dict[str, Any], state: dict[str, Any] | None = None, *, message: str = ""
) -> dict[str, Any]:
    """Returns a pod whose proxy crashes after each start, in a state other than the usual one."""
    last = {"terminated": {"exitCode": 1, "message": message}}
    state = state or {"waiting": {"reason": "CrashLoopBackOff"}}
    proxy = {"name": names.PROXY_CONTAINER, "state": state, "restartCount": 2, "lastState": last}
    return {**of, "status": {**of["status"], "initContainerStatuses": [proxy]}}


def killed_proxy(of: dict[str, Any]) -> dict[str, Any]:
    """Returns a pod whose proxy did not end in time after its program."""
    proxy = {"name": names.PROXY_CONTAINER, "state": {"terminated": {"exitCode": 137}}}
    return {**of, "status": {**of["status"], "initContainerStatuses": [proxy]}}


@pytest.mark.parametrize(
    ("of", "pods", "state", "attempt", "code", "reason"),
    [
        (job(), [], "queued", 1, None, ""),
        (job(), [pod({"running": {}})], "queued", 1, None, ""),
        (job(), [pod({"running": {}}, ready=True)], "running", 1, None, ""),
        (
            job(),
            [pod({"waiting": {"reason": "ErrImagePull", "message": "not found"}})],
            "queued",
            1,
            None,
            "its image cannot be pulled (ErrImagePull): not found",
        ),
        (job(failed=1), [ended(7)], "retrying", 1, 7, "exit code 7"),
        (job(failed=1), [], "retrying", 1, None, "its pod was lost"),
        (job(failed=1), [ended(7), pod({"running": {}}, name="b")], "queued", 2, None, ""),
        # Until the Job has its condition.
        (job(failed=1), [ended(0)], "running", 2, None, "it is ending"),
        (job(), [ending(0)], "running", 1, None, "it is ending"),
        (job(), [ended(0) | {"status": {"phase": "Failed"}}], "retrying", 1, None, "it failed"),
        (job(failed=1), [ending(7)], "retrying", 1, 7, "exit code 7"),
        (job(failed=3), [ended(7)], "running", 3, None, "it is ending"),
        (job(failed=2), [ending(7, failed_before=2)], "running", 2, None, "it is ending"),
        (job(failed=1), [ended(126, REFUSED)], "running", 1, None, "it is ending"),
        (job(failed=1), [ended(127)], "running", 1, None, "it is ending"),
        (job("Complete", failed=1), [ended(0)], "succeeded", 2, 0, ""),
        (job("Failed", failed=3), [ended(137)], "failed", 3, 137, "killed by signal 9"),
        (
            job("Failed", failed=1),
            [ended(1, LOST)],
            "failed",
            1,
            1,
            "its connection was lost (its container has ended); exit code 1",
        ),
        (job("Failed", failed=1), [ended(126, REFUSED)], "failed", 1, 125, "no slices"),
        (job("Failed", failed=1), [killed_proxy(ended(7))], "failed", 1, 7, "exit code 7"),
        (
            job(),
            [crashed_proxy(pod({"running": {}}))],
            "queued",
            1,
            None,
            f"its proxy does not serve: {CRASHES}",
        ),
        (
            job(),
            [crashed_proxy(pod({"running": {}}), message=MISSING)],
            "queued",
            1,
            None,
            f"its proxy does not serve: {CRASHES}: {NO_BUCKET}",
        ),
        (job(), [crashed_proxy(pod({"running": {}}), {"running": {}})], "queued", 1, None, ""),
        (job(), [crashed_proxy(pod({"running": {}}, ready=True))], "running", 1, None, ""),
        # The program was not started, since there was no proxy.
        (
            job("Failed", failed=1),
            [crashed_proxy(ended(125), {"terminated": {"exitCode": 1}})],
            "failed",
            1,
            125,
            "exit code 125; its proxy does not serve: it ended with exit code 1",
        ),
        (
            job("Failed", failed=1),
            [crashed_proxy(ended(7), {"terminated": {"exitCode": 1}})],
            "failed",
            1,
            7,
            "exit code 7",
        ),
        (job("Failed", failed=1), [killed_proxy(ended(125))], "failed", 1, 125, "exit code 125"),
        (job("Failed", failed=1), [], "failed", 1, None, "why"),
        (job(failed=0, cancelled=True), [pod(ready=True)], "running", 1, None, "it is being ended"),
        (job("Failed", failed=1, cancelled=True), [], "cancelled", 1, None, ""),
    ],
)
def test_states(
    of: dict[str, Any],
    pods: list[dict[str, Any]],
    state: str,
    attempt: int,
    code: int | None,
    reason: str,
) -> None:
    found = job_status(of, pods, home="kubernetes")
    assert (found.state, found.attempt, found.exit_code) == (state, attempt, code)
    assert found.reason == reason
    assert (found.command, found.slices) == (("python", "train.py"), {"tpuv6e:2x2": 2})
    assert found.is_active == (found.ended is None)


def test_times() -> None:
    running = job_status(job(), [pod({"running": {}}, ready=True)], home="kubernetes")
    assert (running.submitted, running.started, running.retries) == ("T0", "T5", 2)
    failed = job_status(job("Failed", failed=1), [ended(1, LOST)], home="kubernetes")
    assert (failed.started, failed.ended) == ("1970-01-01T00:00:01.500Z", "T9")


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"started": "x"}'])
def test_a_damaged_report_says_nothing(text: str) -> None:
    assert AttemptReport.of_text(text) == AttemptReport()
