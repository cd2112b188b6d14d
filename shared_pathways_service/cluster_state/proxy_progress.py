"""How far a proxy's Job is on its way to serving, and how it ended."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from shared_pathways_service.cluster_state.pods import PodState, Trouble, condition, pod_state
from shared_pathways_service.manifests import names
from shared_pathways_service.runtime.last_requests import explained, parse_unfinished

__all__ = ["Outcome", "ProxyProgress", "Stage", "is_for_lack_of_quota", "read_progress"]


class Stage(enum.StrEnum):
    """Where a proxy's Job is."""

    WAITING = "waiting"
    """Its container does not run yet, and may."""
    RUNNING = "running"
    """Its container runs; whether the server in it does, only a probe tells."""
    ENDED = "ended"
    """It does not run, and never will."""


class Outcome(enum.StrEnum):
    """Why it waits, or has ended."""

    NONE = "none"
    UNSCHEDULABLE = "unschedulable"
    QUOTA = "quota"
    FORBIDDEN = "forbidden"
    IMAGE = "image"
    CONFIG = "config"
    CRASHED = "crashed"
    COMPLETED = "completed"
    EVICTED = "evicted"
    NODE_LOST = "node_lost"
    POD_DELETED = "pod_deleted"
    DELETED = "deleted"
    DEADLINE = "deadline"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyProgress:
    """How a proxy's Job stands.

    Attributes:
      outcome: Why it has ended; while it waits or runs, what is amiss.
      reason: In words; empty when it runs well.
      exit_code: Of the proxy; negative for a signal; None when not known.
      log_tail: The end of its log as the pod's status has it; may be empty.
      pod: The pod's name; empty before there is one.
      node: Where it runs.
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
_QUOTA: Final = re.compile(r"exceeded quota|maximum (cpu|memory)|failed quota", re.IGNORECASE)
_FORBIDDEN: Final = re.compile(r"\bforbidden\b|denied the request", re.IGNORECASE)
#: Events of a pod that say why its container is not started yet.
_POD_EVENTS: Final = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")


def is_for_lack_of_quota(message: str) -> bool:
    """Whether something is not created because of a quota or a limit, by the API server's words."""
    return bool(_QUOTA.search(message))


def read_progress(
    job: Mapping[str, Any] | None,
    pods: Iterable[Mapping[str, Any]] = (),
    events: Iterable[Mapping[str, Any]] = (),
) -> ProxyProgress:
    """Says how a proxy's Job stands.

    Args:
      job: The object; None once it is gone.
      pods: Its pods.
      events: Events (core/v1) of the Job and its pods, in any order.
    """
    state = _latest(pods)
    over = _over(job, state)
    if over is not None:
        return over
    if job is None or state is None:
        return _without_pod(job or {}, list(events))
    outcome = _OUTCOMES.get(state.trouble, Outcome.NONE)
    if state.final:
        return _of(state, Stage.ENDED, outcome, state.reason)
    if state.ready or state.trouble is Trouble.NODE_LOST:
        return _of(state, Stage.RUNNING, outcome, state.reason)
    return _of(state, Stage.WAITING, outcome, _with_event(state, events))


def _over(job: Mapping[str, Any] | None, state: PodState | None) -> ProxyProgress | None:
    """Returns how a Job ended, by what it says itself; None: it has not."""
    if job is None or (job.get("metadata") or {}).get("deletionTimestamp"):
        return _of(state, Stage.ENDED, Outcome.DELETED, "its Job was deleted")
    for kind in ("Failed", "FailureTarget"):
        failed = condition(job, kind)
        if failed.get("status") == "True":
            return _failed(failed, state)
    if condition(job, "Complete").get("status") == "True":
        if state is not None and state.final:
            # One that is taken away may end well, which its Job takes for work that is done.
            return _of(state, Stage.ENDED, _OUTCOMES[state.trouble], state.reason)
        return _of(state, Stage.ENDED, Outcome.COMPLETED, "the proxy ended by itself")
    status = job.get("status") or {}
    if state is None and (status.get("failed") or status.get("uncountedTerminatedPods")):
        return _of(None, Stage.ENDED, Outcome.POD_DELETED, "its pod is gone")
    return None


def _latest(pods: Iterable[Mapping[str, Any]]) -> PodState | None:
    mine = sorted(pods, key=_created)
    return pod_state(mine[-1], names.PROXY_CONTAINER) if mine else None


def _created(pod: Mapping[str, Any]) -> str:
    return str((pod.get("metadata") or {}).get("creationTimestamp") or "")


def _of(state: PodState | None, stage: Stage, outcome: Outcome, reason: str) -> ProxyProgress:
    if state is None:
        return ProxyProgress(stage=stage, outcome=outcome, reason=reason)
    # The message is either, and whoever fails for want of a log asks for it.
    unfinished = parse_unfinished(state.message)
    return ProxyProgress(
        stage=stage,
        outcome=outcome,
        reason=reason if unfinished is None else explained(reason, unfinished),
        exit_code=state.exit_code,
        log_tail=() if unfinished is not None else tuple(state.message.strip().splitlines()),
        pod=state.name,
        node=state.node,
    )


def _failed(failed: Mapping[str, Any], state: PodState | None) -> ProxyProgress:
    if failed.get("reason") == "DeadlineExceeded":
        why = "its Job reached its deadline: nobody moved it on, or max_lifetime is over"
        return _of(state, Stage.ENDED, Outcome.DEADLINE, why)
    if state is not None and state.final:
        return _of(state, Stage.ENDED, _OUTCOMES[state.trouble], state.reason)
    if state is None:
        # The pod is gone for good: somebody deleted it, or its node's end did.
        return _of(None, Stage.ENDED, Outcome.POD_DELETED, "its pod is gone")
    why = str(failed.get("message") or failed.get("reason") or "its Job has failed")
    return _of(state, Stage.ENDED, Outcome.CRASHED, why)


def _without_pod(job: Mapping[str, Any], events: list[Mapping[str, Any]]) -> ProxyProgress:
    event = _last_event(events, str((job.get("metadata") or {}).get("uid", "")), ("FailedCreate",))
    if event is None:
        suspended = (job.get("spec") or {}).get("suspend")
        why = "its Job is suspended" if suspended else "its pod is not created yet"
        return ProxyProgress(stage=Stage.WAITING, reason=why)
    message = str(event.get("message") or "")
    if is_for_lack_of_quota(message):
        return ProxyProgress(stage=Stage.ENDED, outcome=Outcome.QUOTA, reason=message)
    if _FORBIDDEN.search(message):
        return ProxyProgress(stage=Stage.ENDED, outcome=Outcome.FORBIDDEN, reason=message)
    return ProxyProgress(stage=Stage.WAITING, reason=message)


def _with_event(state: PodState, events: Iterable[Mapping[str, Any]]) -> str:
    """Returns why a pod waits; the kubelet says some of it in events only."""
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
