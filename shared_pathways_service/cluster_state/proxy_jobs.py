"""Describes proxies from their Jobs, and finds abandoned ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from shared_pathways_service.cluster_state.pods import condition
from shared_pathways_service.cluster_state.timestamps import seconds_of
from shared_pathways_service.errors import SlicesTaken
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.lifetime import deadline_ahead_s, extension_interval_s
from shared_pathways_service.manifests.names import Holder, holder_of, label_value

__all__ = ["KnownProxy", "in_use", "is_proxy", "known_proxy", "tenants_of", "why_kept"]

#: A Job that was extended or created within so many intervals may have a session that is alive.
_LATELY: Final = 1.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownProxy:
    """The Job of a proxy.

    Attributes:
      holder: Its owner, from its labels.
      session: The session's UUID; empty if the Job does not name it.
      pid: The owner's process on the holder's host; 0 if the Job does not name it.
      state: ``starting``, ``running``, ``ended`` or ``deleting``.
      since: RFC 3339.
      keep_for_s: Seconds for which it outlives the last sign of life of its session; None: the
        Job does not say so.
      ends_at: Its deadline, in seconds since 1970; None: it has none, or has not started.
    """

    holder: Holder
    uid: str
    namespace: str
    session: str
    pid: int
    state: str
    since: str
    ends_at: float | None = None
    keep_for_s: float | None = None

    @property
    def name(self) -> str:
        """The Job's name."""
        return self.holder.name

    @property
    def slices(self) -> dict[str, int]:
        """Requested slices by instance type; empty if the Job does not name them."""
        parts = (part.rpartition("=") for part in self.holder.instances.split(",") if part)
        return {kind: int(count) for kind, _, count in parts if count.isdecimal()}


def is_proxy(job: Mapping[str, Any]) -> bool:
    """Whether a Job is a proxy that this package created."""
    own = {names.LABEL_APP: names.APP, names.LABEL_MANAGED_BY: names.MANAGED_BY}
    return own.items() <= names.labels_of(job).items()


def known_proxy(job: Mapping[str, Any]) -> KnownProxy:
    """Reads the Job of a proxy."""
    metadata = job.get("metadata") or {}
    status, spec = job.get("status") or {}, job.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    pid = str(annotations.get(names.ANNOTATION_CREATED_BY_PID) or "")
    deadline, began = spec.get("activeDeadlineSeconds"), seconds_of(status.get("startTime"))
    return KnownProxy(
        holder=holder_of(job),
        uid=str(metadata.get("uid") or ""),
        namespace=str(metadata.get("namespace") or ""),
        session=names.labels_of(job).get(names.LABEL_SESSION, ""),
        pid=int(pid) if pid.isdecimal() else 0,
        state=_state(job),
        since=str(metadata.get("creationTimestamp") or ""),
        ends_at=None if deadline is None or began is None else began + deadline,
        keep_for_s=_number(annotations.get(names.ANNOTATION_KEEP_FOR)),
    )


def why_kept(
    proxy: KnownProxy,
    *,
    user: str,
    host: str,
    is_alive: Callable[[int], bool],
    now: float,
    ahead_s: float,
) -> str:
    """Returns why a proxy must not be deleted by others than its owner; empty: it has no owner.

    A host's name and a process id alone prove nothing, because containers may share both. A live
    session extends its Job's deadline, which is visible from everywhere.

    Args:
      proxy: The proxy.
      user: The requesting user, whose own proxies alone are deleted.
      host: This machine's name.
      is_alive: Returns whether a process of that id runs on this machine.
      now: Seconds since 1970, by the clock of the API server.
      ahead_s: Seconds for which a live session extends the deadline, if its Job does not say so.
    """
    holder, mine = proxy.holder, label_value(user)
    theirs, there = holder.user or "an unknown user", holder.host or "an unknown host"
    ahead_s = deadline_ahead_s(proxy.keep_for_s, ahead_s)
    least_s = ahead_s - _LATELY * extension_interval_s(ahead_s)
    moved_lately = proxy.ends_at is None or proxy.ends_at - now > least_s
    elsewhere = (
        f"process {proxy.pid} does not run here, but its deadline was just extended: it may run "
        "in another container of the same name; if not, the proxy ends by itself"
    )
    reasons = (
        (holder.user != mine, f"it belongs to {theirs}, and you are {mine}"),
        (holder.host != host, f"it was created on {there}, and this is {host}"),
        (not proxy.pid, "it does not name the process that it was created for"),
        (bool(proxy.pid) and is_alive(proxy.pid), f"process {proxy.pid} lives"),
        (proxy.state == "deleting", "it is being deleted"),
        (proxy.state != "ended" and moved_lately, elsewhere),
    )
    return next((reason for applies, reason in reasons if applies), "")


def tenants_of(service: str, proxies: Iterable[KnownProxy]) -> list[KnownProxy]:
    """Returns the proxies of a service that run or may run, including ones of unknown services."""
    return [
        proxy
        for proxy in proxies
        if proxy.state not in ("ended", "deleting") and proxy.holder.service in ("", service)
    ]


def in_use(service: str, tenants: Sequence[KnownProxy], *, hint: str) -> SlicesTaken:
    """Returns the error for a service that has tenants, which it names."""
    named = [f"{proxy.name} ({proxy.holder})" for proxy in tenants]
    return SlicesTaken(
        f"the service {service} has {len(tenants)} connections: {', '.join(named)}",
        holders=[str(proxy.holder) for proxy in tenants],
        hint=hint,
    )


def _state(job: Mapping[str, Any]) -> str:
    if (job.get("metadata") or {}).get("deletionTimestamp"):
        return "deleting"
    if any(condition(job, kind).get("status") == "True" for kind in ("Complete", "Failed")):
        return "ended"
    return "running" if (job.get("status") or {}).get("ready") else "starting"


def _number(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:
        return None
