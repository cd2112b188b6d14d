"""Determines from its pods whether a service in a cluster is ready, and what is missing.

Log lines only add detail: logs are rotated, so a missing line proves nothing.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from shared_pathways_service.cluster_state.log_lines import LogEvent, LogKind
from shared_pathways_service.cluster_state.pods import PodState, Trouble, pod_state
from shared_pathways_service.cluster_state.services import Service, WorkerGroup
from shared_pathways_service.errors import InvalidRequestError, ServiceNotReady
from shared_pathways_service.manifests import names
from shared_pathways_service.runtime.known_errors import KnownError, find_known_error

__all__ = [
    "Look",
    "ServiceReadiness",
    "SlicePods",
    "check_instances",
    "is_over",
    "read_readiness",
    "service_selector",
]

_POD_INDEX: Final = "batch.kubernetes.io/job-completion-index"
#: Pods that an error lists.
_SHOWN: Final = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlicePods:
    """A slice, e.g. ``worker-0``, which is ready if the workers of all its hosts are."""

    name: str
    instance_type: str
    ready: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceReadiness:
    """The state of a service's pods.

    Attributes:
      head: The resource manager's pod; None: there is none.
      ready: Slices whose workers are all ready.
      wanted: Slices that the service should have.
      ready_by_type: Slices that are ready, by instance type.
      troubles: Each pod that is not ready, with the reason, the head's first; and slices with
        missing pods.
      detail: Detail from the resource manager's log; may be empty.
      crashed: Pods that crash without a message: their logs may have one.
      has_missing_pods: Whether pods are missing: events may say why.
      slices: Every slice that the service should have.
      known_error: An explanation of the end of a crashed pod's log; None: there is none.
      changes_in_s: Seconds until a pod may be ready without an event (`PodState.settles_in_s`);
        None: there is none.
      settles_in_s: Seconds until all pods that are ready have survived their starts; 0: they have.
    """

    service: Service
    head: PodState | None
    ready: int
    wanted: int
    ready_by_type: Mapping[str, int]
    troubles: tuple[str, ...]
    detail: str = ""
    crashed: tuple[PodState, ...] = ()
    has_missing_pods: bool = False
    slices: tuple[SlicePods, ...] = ()
    known_error: KnownError | None = None
    changes_in_s: float | None = None
    settles_in_s: float = 0.0

    @property
    def head_ready(self) -> bool:
        """Whether the resource manager's pod is ready."""
        return self.head is not None and self.head.ready

    @property
    def complete(self) -> bool:
        """Whether all of the service is ready."""
        return not self.service.ended and self.head_ready and self.ready >= self.wanted

    def suffices_for(self, virtual_slices: Sequence[str], elastic_slices: int = 0) -> bool:
        """Whether the ready slices are enough for a request, if no other tenant has any.

        Without instance types it is one slice of the service's first type; elastic slices may be
        missing.
        """
        if self.service.ended or not self.head_ready:
            return False
        wants = Counter(virtual_slices) or Counter([next(iter(self.service.instances), "")])
        have = sum(min(n, self.ready_by_type.get(kind, 0)) for kind, n in wants.items())
        return have >= max(1, wants.total() - elastic_slices)

    @property
    def reason(self) -> str:
        """What is not ready, in one line; empty if all is ready."""
        if self.complete:
            return ""
        cause = self.known_error.cause if self.known_error else ""
        if self.service.ended:
            return " - ".join(filter(None, (self.service.ended, cause)))
        what = [] if self.head_ready else ["the resource manager is not ready"]
        if self.ready < self.wanted:
            what.append(f"{self.ready} of {self.wanted} slices are ready")
        shown = "; ".join(self.troubles[:_SHOWN])
        more = len(self.troubles) - _SHOWN
        shown += f"; and {more} more" if more > 0 else ""
        return " - ".join(filter(None, (", ".join(what), shown, cause, self.detail)))

    @property
    def is_hopeless(self) -> bool:
        """Whether it does not become ready by itself."""
        return bool(self.service.ended or (self.known_error and self.known_error.is_permanent))

    def hint(self, otherwise: str) -> str:
        """Returns what to do about a known error; without one, the other text."""
        return self.known_error.hint if self.known_error else otherwise

    def error(self, hint: str = "") -> ServiceNotReady:
        """Returns the error for a service that is not ready, with a hint of its own."""
        return ServiceNotReady(
            f"the service {self.service.name} is not ready: {self.reason}",
            ready=self.ready,
            wanted=self.wanted,
            pods=self.troubles,
            hint=self.hint(
                hint or "a longer timeout= waits for it; kubectl describe shows details of a pod"
            ),
        )


#: Called with the readiness of a service, and its pods.
Look = Callable[[ServiceReadiness, Sequence[Mapping[str, Any]]], None]


def service_selector(service: Service) -> str:
    """Returns the label selector of a service's pods."""
    return f"{names.LABEL_JOBSET}={service.name}"


def read_readiness(
    service: Service,
    pods: Iterable[Mapping[str, Any]],
    manager_log: Iterable[LogEvent] = (),
    *,
    now: float | None = None,
    last_words: Mapping[str, str] | None = None,
) -> ServiceReadiness:
    """Returns the readiness of a service.

    Args:
      service: The service as its JobSet describes it.
      pods: Its pods (`service_selector`); others are ignored.
      manager_log: Lines of the resource manager's log, oldest first.
      now: As for `pod_state`.
      last_words: Ends of logs of crashed pods, by UID, if a pod's status has none.
    """
    mine = [p for p in pods if names.labels_of(p).get(names.LABEL_JOBSET) == service.name]
    states = _States(last_words or {}, now)
    head = _head(mine, states)
    ready: Counter[str] = Counter()
    settles_in_s = head.settles_in_s if head is not None and head.ready else 0.0
    unready: list[PodState] = [] if head is None or head.ready else [head]
    troubles = [str(head or "the head has no pod")] if head is None or not head.ready else []
    has_missing_pods = head is None
    slices: list[SlicePods] = []
    for group in service.workers:
        found = _group(group, mine, states)
        ready[group.instance_type] += sum(slice_pods.ready for slice_pods in found.slices)
        slices += found.slices
        settles_in_s = max(settles_in_s, found.settles_in_s)
        unready += found.unready
        troubles += [*map(str, found.unready), *found.missing]
        has_missing_pods = has_missing_pods or bool(found.missing)
    logs = (pod.message for pod in unready if pod.trouble is Trouble.CRASHED)
    waits = (pod.settles_in_s for pod in unready if pod.settles_in_s)
    return ServiceReadiness(
        service=service,
        head=head,
        ready=ready.total(),
        wanted=service.wanted,
        ready_by_type=dict(ready),
        troubles=tuple(troubles),
        detail=_detail(manager_log),
        crashed=tuple(p for p in unready if p.trouble is Trouble.CRASHED and not p.message),
        has_missing_pods=has_missing_pods,
        slices=tuple(slices),
        known_error=next(filter(None, map(find_known_error, logs)), None),
        changes_in_s=min(waits, default=None),
        settles_in_s=settles_in_s,
    )


def check_instances(service: Service, virtual_slices: Sequence[str]) -> None:
    """Checks requested instance types against the service's, if they are known.

    Raises:
      InvalidRequestError: The service has no slices of a type, or fewer than requested.
    """
    if not service.instances:
        return
    has = ", ".join(f"{n} x {kind}" for kind, n in service.instances.items())
    for kind, count in Counter(virtual_slices).items():
        there = service.instances.get(kind, 0)
        if count > there:
            found = f"has {there} slices" if there else "has no slice"
            raise InvalidRequestError(
                "expected_tpu_instances",
                names.instances_text(virtual_slices),
                f"no more than {has}",
                message=f"the service {service.name} {found} of {kind}, and {count} are requested: "
                f"it has {has}",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Group:
    """The state of the slices of a group."""

    slices: Sequence[SlicePods]
    unready: Sequence[PodState]
    missing: Sequence[str]
    settles_in_s: float


@dataclasses.dataclass(frozen=True)
class _States:
    """Reads states of pods, with the ends of logs that their statuses lack."""

    last_words: Mapping[str, str]
    now: float | None

    def of(self, pod: Mapping[str, Any], container: str) -> PodState:
        state = pod_state(pod, container, now=self.now)
        message = state.message or self.last_words.get(state.uid, "")
        return dataclasses.replace(state, message=message)


def _head(pods: Iterable[Mapping[str, Any]], states: _States) -> PodState | None:
    found = [states.of(pod, names.RM_CONTAINER) for pod in _current(pods, names.HEAD_JOB)]
    return max(found, key=lambda state: state.ready, default=None)


def _group(group: WorkerGroup, pods: Iterable[Mapping[str, Any]], states: _States) -> _Group:
    ready: dict[str, set[str]] = {}
    unready: dict[str, list[PodState]] = {str(index): [] for index in range(group.slices)}
    settles_in_s = 0.0
    for pod in _current(pods, group.name):
        labels = names.labels_of(pod)
        index, host = labels.get(names.LABEL_JOB_INDEX, ""), _host_index(pod)
        state = states.of(pod, names.WORKER_CONTAINER)
        if state.ready:
            ready.setdefault(index, set()).add(host)
            settles_in_s = max(settles_in_s, state.settles_in_s)
        elif index in unready:
            unready[index].append(state)
    slices: list[SlicePods] = []
    blocking: list[PodState] = []
    missing: list[str] = []
    for index, found in unready.items():
        hosts = len(ready.get(index, ()))
        is_ready = hosts >= group.hosts
        name = f"{group.name}-{index}"
        slices.append(SlicePods(name=name, instance_type=group.instance_type, ready=is_ready))
        if is_ready:
            continue
        blocking += found
        absent = group.hosts - hosts - len(found)
        if absent > 0:
            missing.append(
                f"{absent} of {group.hosts} pods of slice {index} of {group.name} are missing"
            )
    return _Group(slices=slices, unready=blocking, missing=missing, settles_in_s=settles_in_s)


def _current(pods: Iterable[Mapping[str, Any]], job: str) -> list[Mapping[str, Any]]:
    """Returns a replicated job's pods without replaced ones: the newest of each place."""
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for pod in sorted(pods, key=_rank):
        labels = names.labels_of(pod)
        if labels.get(names.LABEL_REPLICATED_JOB) == job:
            newest[labels.get(names.LABEL_JOB_INDEX, ""), _host_index(pod)] = pod
    return list(newest.values())


def is_over(pod: Mapping[str, Any]) -> bool:
    """Whether all containers of a pod have ended and will not restart."""
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def _rank(pod: Mapping[str, Any]) -> tuple[bool, str]:
    """Running before ending, then newer ones: creation times have whole seconds only."""
    metadata = pod.get("metadata") or {}
    dying = bool(metadata.get("deletionTimestamp")) or is_over(pod)
    return not dying, str(metadata.get("creationTimestamp") or "")


def _host_index(pod: Mapping[str, Any]) -> str:
    metadata = pod.get("metadata") or {}
    for place in ("labels", "annotations"):
        if index := (metadata.get(place) or {}).get(_POD_INDEX):
            return str(index)
    return "0"


def _detail(manager_log: Iterable[LogEvent]) -> str:
    events = [event for event in manager_log if event.kind is LogKind.SLICES_READY]
    if not events:
        return ""
    last = events[-1]
    return f"the resource manager's log says {last.count} of {last.wanted} slices are ready"
