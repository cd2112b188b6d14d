"""Describes submitted jobs from their Jobs and pods: pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from shared_pathways_service.api.job_requests import JobState, JobStatus
from shared_pathways_service.cluster_state.job_ends import AttemptReport
from shared_pathways_service.cluster_state.pods import (
    Trouble,
    condition,
    exit_code_of,
    pod_state,
)
from shared_pathways_service.cluster_state.proxy_jobs import known_proxy
from shared_pathways_service.cluster_state.readiness import is_over
from shared_pathways_service.events import rfc3339
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.jobs.submitted_job import FINAL_CODES
from shared_pathways_service.runtime.known_errors import find_known_error

__all__ = ["JOB_SELECTOR", "is_submitted_job", "job_status", "pods_in_order"]

Object = Mapping[str, Any]

#: The exit code of `sps run` that fails itself.
_RUNNER_FAILED: Final = 125
#: The annotation of a pod with the number of failed attempts before it.
_EARLIER_FAILURES: Final = "batch.kubernetes.io/job-index-failure-count"
#: Selects every submitted job.
JOB_SELECTOR: Final = f"{names.PROXY_SELECTOR},{names.LABEL_KIND}={names.KIND_JOB}"


def is_submitted_job(job: Object) -> bool:
    """Whether a Job is a submitted job, and not only a proxy."""
    return names.labels_of(job).get(names.LABEL_KIND) == names.KIND_JOB


def pods_in_order(pods: Sequence[Object]) -> list[Object]:
    """Returns the pods of a job by their attempts, the first first."""

    def order(pod: Object) -> tuple[str, str]:
        metadata = pod["metadata"]
        return str(metadata.get("creationTimestamp") or ""), str(metadata.get("name"))

    return sorted(pods, key=order)


def job_status(job: Object, pods: Sequence[Object], *, home: str) -> JobStatus:
    """Returns the state of a submitted job.

    Args:
      job: Its Job.
      pods: The pods of this Job.
      home: The name of its home.
    """
    metadata, spec = job["metadata"], job.get("spec") or {}
    annotations, status = metadata.get("annotations") or {}, job.get("status") or {}
    ordered = pods_in_order(pods)
    last = ordered[-1] if ordered else None
    report, code = _end_of(last)
    state, reason = _state(job, last, report)
    is_final = state in ("succeeded", "failed", "cancelled")
    if state == "succeeded":
        code = 0
    ended = condition(job, "Complete") or condition(job, "Failed")
    failed = int(status.get("failed") or 0)
    is_between = state == "retrying" or is_final or (last is not None and _has_failed(last))
    return JobStatus(
        name=str(metadata["name"]),
        home=home,
        state=state,
        command=tuple(json.loads(annotations.get(names.ANNOTATION_COMMAND) or "[]")),
        workdir=str(annotations.get(names.ANNOTATION_WORKDIR) or ""),
        slices=known_proxy(job).slices,
        attempt=max(1, failed + (0 if is_between and state != "succeeded" else 1)),
        retries=int(spec.get("backoffLimitPerIndex") or 0),
        submitted=str(metadata.get("creationTimestamp") or ""),
        started=_started(last, report),
        ended=str(ended.get("lastTransitionTime") or "") or None if is_final else None,
        exit_code=code if is_final or state == "retrying" else None,
        reason=reason,
    )


def _state(job: Object, pod: Object | None, report: AttemptReport) -> tuple[JobState, str]:
    metadata = job["metadata"]
    is_cancelled = names.ANNOTATION_CANCELLED in (metadata.get("annotations") or {})
    failure = condition(job, "Failed")
    if condition(job, "Complete").get("status") == "True":
        return "succeeded", ""
    if failure.get("status") == "True":
        why = _why_ended(pod, report) if pod else str(failure.get("message") or "")
        return ("cancelled", "") if is_cancelled else ("failed", why)
    if is_cancelled or metadata.get("deletionTimestamp"):
        return "running", "it is being ended"
    return _active_state(job, pod, report)


def _active_state(job: Object, pod: Object | None, report: AttemptReport) -> tuple[JobState, str]:
    has_failed = bool((job.get("status") or {}).get("failed"))
    if pod is None:
        return ("retrying", "its pod was lost") if has_failed else ("queued", "")
    if _has_ended(pod):
        # Its Job has a condition only a moment later.
        is_last = not _has_failed(pod) or _is_final(job, pod)
        return ("running", "it is ending") if is_last else ("retrying", _why_ended(pod, report))
    if condition(pod, "Ready").get("status") == "True":
        return "running", ""
    # A program that waits for its slices is no trouble of its pod.
    is_waiting = "running" in _container(pod)
    if is_waiting:
        return "queued", _proxy_crash(pod)
    return "queued", pod_state(pod, names.JOB_CONTAINER).reason


def _why_ended(pod: Object, report: AttemptReport) -> str:
    """Returns why an attempt ended, in words."""
    if report.refused:
        return report.refused
    crash = _proxy_crash(pod)
    if _terminated(pod):
        # A proxy that is killed after the end of its program is not the reason.
        pod = {**pod, "status": {**pod["status"], "initContainerStatuses": ()}}
    found = pod_state(pod, names.JOB_CONTAINER)
    code = found.exit_code
    if code is not None and found.container == names.JOB_CONTAINER and not _is_disrupted(pod):
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        if _terminated(pod).get("reason") == "OOMKilled":
            how = found.reason
        elif code == _RUNNER_FAILED and crash:
            how = f"{how}; {crash}"
    else:
        how = found.reason
    return f"its connection was lost ({report.lost}); {how}" if report.lost else how


def _proxy_crash(pod: Object) -> str:
    """Returns how the proxy crashed by itself, in words; empty: it has not."""
    proxy = pod_state(pod, names.PROXY_CONTAINER)
    if proxy.trouble is not Trouble.CRASHED or (proxy.exit_code or 0) <= 0:
        return ""
    known = find_known_error(proxy.message)
    return ": ".join(["its proxy does not serve", proxy.reason, *([known.cause] if known else [])])


def _end_of(pod: Object | None) -> tuple[AttemptReport, int | None]:
    """Returns the report of an ended attempt and its exit code, 128 + n for signal n."""
    ended = _terminated(pod)
    code = exit_code_of(ended)
    report = AttemptReport.of_text(str(ended.get("message") or ""))
    if report.refused:
        return report, _RUNNER_FAILED
    return report, 128 - code if code is not None and code < 0 else code


def _started(pod: Object | None, report: AttemptReport) -> str | None:
    if report.started is not None:
        return rfc3339(report.started)
    ready = condition(pod or {}, "Ready")
    return str(ready.get("lastTransitionTime")) if ready.get("status") == "True" else None


def _terminated(pod: Object | None) -> Mapping[str, Any]:
    return _container(pod).get("terminated") or {}


def _container(pod: Object | None) -> Mapping[str, Any]:
    """Returns the state of the program's container."""
    statuses = ((pod or {}).get("status") or {}).get("containerStatuses") or ()
    mine: Object = next((s for s in statuses if s.get("name") == names.JOB_CONTAINER), {})
    return mine.get("state") or {}


def _has_ended(pod: Object) -> bool:
    return is_over(pod) or bool(_terminated(pod))


def _has_failed(pod: Object) -> bool:
    """Whether a pod has ended without success; its proxy may still be ending."""
    has_failed = (pod.get("status") or {}).get("phase") == "Failed"
    return has_failed or (_has_ended(pod) and exit_code_of(_terminated(pod)) not in (None, 0))


def _is_final(job: Object, pod: Object) -> bool:
    """Whether Kubernetes does not start a failed job again."""
    retries = int((job.get("spec") or {}).get("backoffLimitPerIndex") or 0)
    annotations = pod["metadata"].get("annotations") or {}
    earlier = int(annotations.get(_EARLIER_FAILURES) or 0)
    failed = max(int((job.get("status") or {}).get("failed") or 0), earlier + 1)
    return failed > retries or exit_code_of(_terminated(pod)) in FINAL_CODES


def _is_disrupted(pod: Object) -> bool:
    return condition(pod, "DisruptionTarget").get("status") == "True"
