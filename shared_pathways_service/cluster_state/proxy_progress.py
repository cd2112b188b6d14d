"""Determines how far a proxy's Job has started, how it ended, and why it was refused."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from shared_pathways_service.cluster_state.pods import PodState, Trouble, condition, pod_state
from shared_pathways_service.errors import InvalidRequestError, ProxyFailed, SharedPathwaysError
from shared_pathways_service.manifests import names
from shared_pathways_service.runtime.last_requests import explained, parse_unfinished
from shared_pathways_service.session.proxy_ends import no_room

__all__ = ["Outcome", "ProxyProgress", "Stage", "create_refused", "read_progress"]


class Stage(enum.StrEnum):
    """The stage of a proxy's Job."""

    WAITING = "waiting"
    """Its container does not run yet, but may."""
    RUNNING = "running"
    """Its container runs; only a probe shows whether its server does."""
    ENDED = "ended"
    """It does not run, and never will."""


class Outcome(enum.StrEnum):
    """Why a proxy waits, or has ended."""

    NONE = "none"
    UNSCHEDULABLE = "unschedulable"
    QUOTA = "quota"
    FORBIDDEN = "forbidden"
    IMAGE = "image"
    CONFIG = "config"
    LINK = "link"
    CRASHED = "crashed"
    COMPLETED = "completed"
    EVICTED = "evicted"
    NODE_LOST = "node_lost"
    POD_DELETED = "pod_deleted"
    DELETED = "deleted"
    DEADLINE = "deadline"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyProgress:
    """The state of a proxy's Job.

    Attributes:
      outcome: Why it has ended, or what problem it has.
      reason: A sentence; empty if there is no problem.
      exit_code: The proxy's exit code; negative for a signal; None if unknown.
      log_tail: The end of its log from the pod's status; may be empty.
      pod: The pod's name; empty before the pod exists.
      node: The pod's node.
    """

    stage: Stage
    outcome: Outcome = Outcome.NONE
    reason: str = ""
    exit_code: int | None = None
    log_tail: tuple[str, ...] = ()
    pod: str = ""
    node: str = ""


_OUTCOMES: Final = {
    Trouble.UNSCHEDULABLE: Outcome.UNSCHEDULABLE,
    Trouble.IMAGE: Outcome.IMAGE,
    Trouble.CONFIG: Outcome.CONFIG,
    Trouble.CRASHED: Outcome.CRASHED,
    Trouble.EVICTED: Outcome.EVICTED,
    Trouble.NODE_LOST: Outcome.NODE_LOST,
    Trouble.DELETED: Outcome.POD_DELETED,
    Trouble.ENDED: Outcome.COMPLETED,
}
#: Troubles of a link's sidecar that end the proxy.
_LINK_TROUBLES: Final = (Trouble.IMAGE, Trouble.CONFIG, Trouble.CRASHED)
#: Messages of the API server about a quota or a limit that prevents a creation.
_QUOTA: Final = re.compile(r"exceeded quota|maximum (cpu|memory)|failed quota", re.IGNORECASE)
#: Likewise about a policy, or a pod that a limit range's defaults made invalid.
_FORBIDDEN: Final = re.compile(
    r"\bforbidden\b|denied the request|\bpod \S+ is invalid:", re.IGNORECASE
)
#: The line of our proxy's log when the resource manager does not accept its hello at all.
_REFUSED: Final = re.compile(r"the RM refuses this proxy: [A-Z_]+: (?P<why>.+)")
#: Events of a pod that say why its container has not started.
_POD_EVENTS: Final = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")


def create_refused(name: str, namespace: str, *, reason: str, message: str) -> SharedPathwaysError:
    """Returns the error for an API server's final refusal to create a proxy's Job.

    Args:
      name: The Job's name.
      namespace: The Job's namespace.
      reason: Kubernetes' ``Status.reason``, e.g. ``AlreadyExists`` for another user's Job.
      message: The API server's message.
    """
    if reason == "AlreadyExists":
        return InvalidRequestError(
            "proxy_job_name",
            name,
            f"a name without a Job in namespace {namespace}",
            hint="without proxy_job_name= a name is generated",
        )
    if _QUOTA.search(message):
        return no_room(name, message)
    return ProxyFailed(
        f"the proxy {name} is not admitted: {message}",
        hint="the API server's message names the field or the policy",
    )


def read_progress(
    job: Mapping[str, Any] | None,
    pods: Iterable[Mapping[str, Any]] = (),
    events: Iterable[Mapping[str, Any]] = (),
) -> ProxyProgress:
    """Returns the state of a proxy's Job.

    Args:
      job: The object; None once it is deleted.
      pods: Its pods.
      events: Events (core/v1) of the Job and its pods, in any order.
    """
    newest = max(pods, key=_created, default=None)
    state = pod_state(newest, names.PROXY_CONTAINER) if newest else None
    ended = _ended(job, state)
    if ended is not None:
        return ended
    if job is None or state is None:
        return _without_pod(job or {}, list(events))
    outcome = _OUTCOMES.get(state.trouble, Outcome.NONE)
    if state.container == names.LINK_CONTAINER and state.trouble in _LINK_TROUBLES:
        # (The proxy waits for it. Kubernetes would try again for ever.)
        reason = f"the sidecar of its link, {names.LINK_CONTAINER}, does not start: {state.reason}"
        return _of(state, Stage.ENDED, Outcome.LINK, reason)
    if state.final:
        return _of(state, Stage.ENDED, outcome, state.reason)
    if state.ready or state.trouble is Trouble.NODE_LOST:
        return _of(state, Stage.RUNNING, outcome, state.reason)
    return _of(state, Stage.WAITING, outcome, _with_event(state, events))


def _ended(job: Mapping[str, Any] | None, state: PodState | None) -> ProxyProgress | None:
    """Returns how a Job ended from its own status; None: it has not."""
    if job is None or (job.get("metadata") or {}).get("deletionTimestamp"):
        return _of(state, Stage.ENDED, Outcome.DELETED, "its Job was deleted")
    for kind in ("Failed", "FailureTarget"):
        failed = condition(job, kind)
        if failed.get("status") == "True":
            return _failed(failed, state)
    if condition(job, "Complete").get("status") == "True":
        if state is not None and state.final:
            # A deleted pod may end with code 0, which its Job counts as success.
            return _of(state, Stage.ENDED, _OUTCOMES[state.trouble], state.reason)
        return _of(state, Stage.ENDED, Outcome.COMPLETED, "the proxy ended by itself")
    status = job.get("status") or {}
    if state is None and (status.get("failed") or status.get("uncountedTerminatedPods")):
        return _of(None, Stage.ENDED, Outcome.POD_DELETED, "its pod was deleted")
    return None


def _created(pod: Mapping[str, Any]) -> str:
    return str((pod.get("metadata") or {}).get("creationTimestamp") or "")


def _of(state: PodState | None, stage: Stage, outcome: Outcome, reason: str) -> ProxyProgress:
    if state is None:
        return ProxyProgress(stage=stage, outcome=outcome, reason=reason)
    # The message may be either; without a log the caller reads it.
    unfinished = parse_unfinished(state.message)
    if unfinished is not None:
        reason = explained(reason, unfinished)
    elif refusal := _REFUSED.search(state.message):
        reason = f"the resource manager refuses it: {refusal['why']}"
    return ProxyProgress(
        stage=stage,
        outcome=outcome,
        reason=reason,
        exit_code=state.exit_code,
        log_tail=() if unfinished is not None else tuple(state.message.strip().splitlines()),
        pod=state.name,
        node=state.node,
    )


def _failed(failed: Mapping[str, Any], state: PodState | None) -> ProxyProgress:
    if failed.get("reason") == "DeadlineExceeded":
        why = "its Job reached its deadline: it was not extended, or max_lifetime is over"
        return _of(state, Stage.ENDED, Outcome.DEADLINE, why)
    if state is not None and state.final:
        return _of(state, Stage.ENDED, _OUTCOMES[state.trouble], state.reason)
    if state is None:
        # The pod no longer exists: it was deleted, directly or with its node.
        return _of(None, Stage.ENDED, Outcome.POD_DELETED, "its pod was deleted")
    why = str(failed.get("message") or failed.get("reason") or "its Job has failed")
    return _of(state, Stage.ENDED, Outcome.CRASHED, why)


def _without_pod(job: Mapping[str, Any], events: list[Mapping[str, Any]]) -> ProxyProgress:
    event = _last_event(events, str((job.get("metadata") or {}).get("uid", "")), ("FailedCreate",))
    if event is None:
        suspended = (job.get("spec") or {}).get("suspend")
        why = "its Job is suspended" if suspended else "its pod is not created yet"
        return ProxyProgress(stage=Stage.WAITING, reason=why)
    message = str(event.get("message") or "")
    if _QUOTA.search(message):
        return ProxyProgress(stage=Stage.ENDED, outcome=Outcome.QUOTA, reason=message)
    if _FORBIDDEN.search(message):
        return ProxyProgress(stage=Stage.ENDED, outcome=Outcome.FORBIDDEN, reason=message)
    return ProxyProgress(stage=Stage.WAITING, reason=message)


def _with_event(state: PodState, events: Iterable[Mapping[str, Any]]) -> str:
    """Returns why a pod waits; the kubelet reports some reasons only in events."""
    if state.trouble is not Trouble.STARTING:
        return state.reason
    event = _last_event(events, state.uid, _POD_EVENTS)
    return state.reason if event is None else f"{state.reason}: {event.get('message')}"


def _last_event(
    events: Iterable[Mapping[str, Any]], uid: str, reasons: tuple[str, ...]
) -> Mapping[str, Any] | None:
    mine = [
        event
        for event in events
        if event.get("reason") in reasons and (event.get("involvedObject") or {}).get("uid") == uid
    ]
    return max(mine, key=_seen, default=None)


def _seen(event: Mapping[str, Any]) -> str:
    series = event.get("series") or {}
    last = event.get("lastTimestamp") or series.get("lastObservedTime") or event.get("eventTime")
    return str(last or "")
