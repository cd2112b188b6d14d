"""Describes the state of a pod, and whether it can still become ready by itself."""

from __future__ import annotations

import dataclasses
import enum
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shared_pathways_service.cluster_state.timestamps import seconds_of

__all__ = ["PodState", "Trouble", "condition", "exit_code_of", "pod_state"]


class Trouble(enum.StrEnum):
    """What prevents a pod from being ready."""

    NONE = "none"
    STARTING = "starting"
    UNSCHEDULABLE = "unschedulable"
    IMAGE = "image"
    CONFIG = "config"
    CRASHED = "crashed"
    EVICTED = "evicted"
    NODE_LOST = "node_lost"
    DELETED = "deleted"
    ENDED = "ended"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PodState:
    """The state of a pod.

    Attributes:
      node: The pod's node; empty while it is not scheduled.
      reason: Why it is not ready, in words; empty if it is.
      final: Whether it cannot become ready without help.
      exit_code: The exit code of its container, as in `exit_code_of`; None if it has not ended.
      container: The container that prevents it from being ready; empty without a status.
      message: The termination message, mostly the end of the container's log.
      settles_in_s: Seconds until a container that was started a moment ago has run for long enough
        to have survived its start. 0: it has, or it does not run. Until then, one that crashed
        right after its last start is not ready.
    """

    name: str = ""
    uid: str = ""
    node: str = ""
    ready: bool = False
    trouble: Trouble
    reason: str = ""
    final: bool = False
    exit_code: int | None = None
    message: str = ""
    container: str = ""
    settles_in_s: float = 0.0

    def __str__(self) -> str:
        state = f"{self.name}: {self.reason or 'ready'}"
        return f"{state} (its last words: {words})" if (words := self._last_words) else state

    @property
    def _last_words(self) -> str:
        """The end of what it wrote before it crashed, in one line."""
        if self.trouble is not Trouble.CRASHED:
            return ""
        lines = [line.strip() for line in self.message.splitlines() if line.strip()]
        text = " | ".join(lines[-_LAST_LINES:])
        return f"…{text[-_LAST_CHARACTERS:]}" if len(text) > _LAST_CHARACTERS else text


#: Messages of kubelets and runtimes about image pulls that will not succeed.
_NO_IMAGE: Final = re.compile(
    r"not found|manifest unknown|denied|unauthorized|forbidden|no such host|does not exist"
    r"|invalid reference|repository name",
    re.IGNORECASE,
)
_IMAGE_REASONS: Final = ("ErrImagePull", "ImagePullBackOff", "ImageInspectError")
_IMAGE_FINAL: Final = ("InvalidImageName", "ErrImageNeverPull")
_CONFIG_REASONS: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
#: Disruptions (the pod condition DisruptionTarget) that are caused by the node.
_NODE_REASONS: Final = ("DeletionByTaintManager", "DeletionByPodGC")
_SIGNALS: Final = range(128 + 1, 128 + 65)
#: Seconds after a start within which a crash is one of the start. A container without a readiness
#: probe is ready for that short time, again after each restart.
_SETTLED_AGE_S: Final = 10.0
#: Times in statuses have whole seconds, and may be those of another machine.
_CLOCK_SLACK_S: Final = 1.0
#: Signals of a server that aborts itself, or has a fault. Whoever sends another one need not do so
#: again.
_OWN_SIGNALS: Final = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)
#: Lines of a crashed container's log that fit into one message.
_LAST_LINES: Final = 3
_LAST_CHARACTERS: Final = 400


def condition(item: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Returns an object's condition of a type; empty without one."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == kind), {})


def exit_code_of(terminated: Mapping[str, Any]) -> int | None:
    """Returns a container's exit code; negative for a signal, which runtimes report as 128 + N."""
    signal = terminated.get("signal")
    if signal:
        return -int(signal)
    code = terminated.get("exitCode")
    if code is None:
        return None
    return 128 - int(code) if code in _SIGNALS else int(code)


def pod_state(pod: Mapping[str, Any], container: str, *, now: float | None = None) -> PodState:
    """Returns the state of a pod and of a container, which may be a sidecar, too.

    Args:
      pod: The pod.
      container: The name of the container.
      now: Seconds since 1970 by the cluster's clock: a container that crashed right after its last
        start is not ready before it has run for a while. None: it is ready at once.
    """
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    ready = condition(pod, "Ready").get("status") == "True"
    status = _container_status(pod, container)
    found = _trouble(pod, status)
    if ready and found.trouble is Trouble.NONE and now is not None:
        found = _just_started(status, now) or found
    return dataclasses.replace(
        found,
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        node=str(spec.get("nodeName") or ""),
        container=str(status.get("name") or ""),
        ready=ready and found.trouble is Trouble.NONE,
    )


def _trouble(pod: Mapping[str, Any], status: Mapping[str, Any]) -> PodState:
    state = status.get("state") or {}
    checks = (
        _disrupted(pod, state),
        _terminated(pod, state.get("terminated")),
        _failed(pod),
        _deleted(pod),
        _waiting(state.get("waiting"), status),
        _unscheduled(pod),
        _unready(pod, status),
    )
    return next((found for found in checks if found is not None), PodState(trouble=Trouble.NONE))


def _disrupted(pod: Mapping[str, Any], state: Mapping[str, Any]) -> PodState | None:
    disruption = condition(pod, "DisruptionTarget")
    status = pod.get("status") or {}
    reason = str(disruption.get("reason") or "")
    node = str((pod.get("spec") or {}).get("nodeName") or "its node")
    exit_code = exit_code_of(state.get("terminated") or {})
    if reason in _NODE_REASONS or status.get("reason") == "NodeLost":
        why = _sentence(f"{node} was lost", disruption.get("message"))
        return PodState(trouble=Trouble.NODE_LOST, reason=why, final=True, exit_code=exit_code)
    if disruption.get("status") == "True" or status.get("reason") in ("Evicted", "Preempting"):
        message = disruption.get("message") or status.get("message")
        why = _sentence(f"evicted from {node}", message)
        return PodState(trouble=Trouble.EVICTED, reason=why, final=True, exit_code=exit_code)
    return None


def _terminated(pod: Mapping[str, Any], terminated: Mapping[str, Any] | None) -> PodState | None:
    if not terminated or _is_deleted(pod):
        return None
    exit_code = exit_code_of(terminated)
    if exit_code == 0:
        return PodState(trouble=Trouble.ENDED, reason="it ended", final=True, exit_code=0)
    restarts = (pod.get("spec") or {}).get("restartPolicy") != "Never"
    return PodState(
        trouble=Trouble.CRASHED,
        reason=_ended_how(terminated),
        final=not restarts,
        exit_code=exit_code,
        message=str(terminated.get("message") or ""),
    )


def _failed(pod: Mapping[str, Any]) -> PodState | None:
    """Describes a pod that ended without a container, e.g. refused by its kubelet."""
    status = pod.get("status") or {}
    if status.get("phase") not in ("Failed", "Unknown"):
        return None
    if _is_deleted(pod) and not status.get("reason"):
        # It failed because it was deleted.
        return None
    reason = str(status.get("reason") or "it failed")
    why = _sentence(reason, status.get("message"))
    return PodState(trouble=Trouble.CRASHED, reason=why, final=True)


def _deleted(pod: Mapping[str, Any]) -> PodState | None:
    if not _is_deleted(pod):
        return None
    return PodState(trouble=Trouble.DELETED, reason="it is being deleted", final=True)


def _waiting(waiting: Mapping[str, Any] | None, status: Mapping[str, Any]) -> PodState | None:
    if not waiting:
        return None
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    image = str(status.get("image") or "its image")
    if reason in _IMAGE_FINAL or reason in _IMAGE_REASONS:
        hopeless = reason in _IMAGE_FINAL or bool(_NO_IMAGE.search(message))
        why = _sentence(f"{image} cannot be pulled ({reason})", message)
        return PodState(trouble=Trouble.IMAGE, reason=why, final=hopeless)
    if reason in _CONFIG_REASONS:
        return PodState(trouble=Trouble.CONFIG, reason=_sentence(reason, message), final=True)
    if reason == "CrashLoopBackOff":
        return _crashing(status)
    return PodState(trouble=Trouble.STARTING, reason=_sentence("it is being started", message))


def _crashing(status: Mapping[str, Any]) -> PodState:
    last = (status.get("lastState") or {}).get("terminated") or {}
    restarts = status.get("restartCount") or 0
    return PodState(
        trouble=Trouble.CRASHED,
        reason=f"it crashes repeatedly ({restarts} restarts): {_ended_how(last)}",
        exit_code=exit_code_of(last),
        message=str(last.get("message") or ""),
    )


def _just_started(status: Mapping[str, Any], now: float) -> PodState | None:
    """Describes a container that has not run for long enough to have survived its start."""
    began = seconds_of(((status.get("state") or {}).get("running") or {}).get("startedAt"))
    if began is None:
        return None
    age_s = now - began
    # (A negative age shows that the clocks differ, and says nothing.)
    if not -_CLOCK_SLACK_S <= age_s < _SETTLED_AGE_S:
        return None
    found = _crashing(status) if _crashed_at_start(status) else PodState(trouble=Trouble.NONE)
    return dataclasses.replace(found, settles_in_s=_SETTLED_AGE_S - age_s)


def _crashed_at_start(status: Mapping[str, Any]) -> bool:
    """Whether the last run of a container ended by a crash right after its start."""
    last = (status.get("lastState") or {}).get("terminated") or {}
    exit_code = exit_code_of(last)
    is_own = last.get("reason") == "OOMKilled" or -(exit_code or 0) in _OWN_SIGNALS
    if not exit_code or (exit_code < 0 and not is_own):
        return False
    began, ended = seconds_of(last.get("startedAt")), seconds_of(last.get("finishedAt"))
    return began is not None and ended is not None and ended - began <= _SETTLED_AGE_S


def _unscheduled(pod: Mapping[str, Any]) -> PodState | None:
    if (pod.get("spec") or {}).get("nodeName"):
        return None
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") != "False":
        return PodState(trouble=Trouble.STARTING, reason="it waits for a node")
    message = scheduled.get("message") or scheduled.get("reason")
    return PodState(trouble=Trouble.UNSCHEDULABLE, reason=_sentence("no node takes it", message))


def _unready(pod: Mapping[str, Any], status: Mapping[str, Any]) -> PodState | None:
    ready = condition(pod, "Ready")
    if ready.get("status") == "True":
        return None
    node = (pod.get("spec") or {}).get("nodeName")
    if status.get("ready"):
        # The container is ready; only the node's controller says otherwise.
        return PodState(trouble=Trouble.NODE_LOST, reason=f"{node} does not answer")
    why = "it is not ready yet" if status.get("state") else f"{node} has not started it yet"
    return PodState(trouble=Trouble.STARTING, reason=_sentence(why, ready.get("message")))


def _container_status(pod: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    """Returns the container's status, or that of an init container that fails."""
    status = pod.get("status") or {}
    main = _named(status.get("containerStatuses") or (), container)
    init: Sequence[Mapping[str, Any]] = status.get("initContainerStatuses") or ()
    if not main:
        return _named(init, container)
    state = main.get("state") or {}
    waiting = state.get("waiting") or {}
    if main.get("ready") or state.get("terminated"):
        return main
    if waiting.get("reason") not in ("PodInitializing", None):
        return main
    return next((s for s in init if _is_stuck(s)), main)


def _is_stuck(status: Mapping[str, Any]) -> bool:
    state = status.get("state") or {}
    ended = state.get("terminated") or {}
    return bool(state.get("waiting")) or bool(ended.get("exitCode"))


def _named(statuses: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    return next((s for s in statuses if s.get("name") == name), {})


def _ended_how(terminated: Mapping[str, Any]) -> str:
    code = exit_code_of(terminated)
    if terminated.get("reason") == "OOMKilled":
        return "it was killed because it exceeded its memory limit (OOMKilled)"
    if code is None:
        return str(terminated.get("reason") or "it ended")
    return f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"


def _is_deleted(pod: Mapping[str, Any]) -> bool:
    return bool((pod.get("metadata") or {}).get("deletionTimestamp"))


def _sentence(what: str, detail: object) -> str:
    return f"{what}: {str(detail).strip()}" if detail else what
