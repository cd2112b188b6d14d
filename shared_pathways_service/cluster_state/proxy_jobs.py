"""Proxies as their Jobs tell of them, and which of them nobody wants any more."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Mapping
from typing import Any, Final

from shared_pathways_service.cluster_state.pods import condition
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.names import Holder, holder_of, label_value

__all__ = ["KnownProxy", "is_proxy", "known_proxy", "why_kept"]

#: A Job whose deadline is further ahead than this share of how far it is moved has been moved
#: lately, or was made just now: somebody may live who does so.
_MOVED_LATELY: Final = 0.7


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownProxy:
    """A proxy's Job.

    Attributes:
      holder: Whose it is, as it says.
      session: Empty when it does not tell.
      pid: The process it was made for, on the holder's host; 0 when it does not tell.
      state: ``starting``, ``running``, ``ended`` or ``deleting``.
      since: RFC 3339.
      ends_at: Its deadline, in seconds since 1970; None: it has none, or has not begun.
    """

    holder: Holder
    uid: str
    namespace: str
    session: str
    pid: int
    state: str
    since: str
    ends_at: float | None = None

    @property
    def name(self) -> str:
        """The Job's."""
        return self.holder.name

    @property
    def slices(self) -> dict[str, int]:
        """How many of each instance type were asked for; empty when it does not tell."""
        parts = (part.rpartition("=") for part in self.holder.instances.split(",") if part)
        return {kind: int(count) for kind, _, count in parts if count.isdecimal()}


def is_proxy(job: Mapping[str, Any]) -> bool:
    """Whether a Job is a proxy that this package created."""
    labels = names.labels_of(job)
    return (
        labels.get(names.LABEL_APP) == names.APP
        and labels.get(names.LABEL_MANAGED_BY) == names.MANAGED_BY
    )


def known_proxy(job: Mapping[str, Any]) -> KnownProxy:
    """Reads a proxy's Job."""
    metadata = job.get("metadata") or {}
    status, spec = job.get("status") or {}, job.get("spec") or {}
    pid = str((metadata.get("annotations") or {}).get(names.ANNOTATION_CREATED_BY_PID) or "")
    deadline, began = spec.get("activeDeadlineSeconds"), _seconds(status.get("startTime"))
    return KnownProxy(
        holder=holder_of(job),
        uid=str(metadata.get("uid") or ""),
        namespace=str(metadata.get("namespace") or ""),
        session=names.labels_of(job).get(names.LABEL_SESSION, ""),
        pid=int(pid) if pid.isdecimal() else 0,
        state=_state(job),
        since=str(metadata.get("creationTimestamp") or ""),
        ends_at=None if deadline is None or began is None else began + deadline,
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
    """Says why a proxy must not be taken down by who is not its owner; empty: nobody owns it.

    A host's name and a process id alone prove nothing: containers share both. A session that lives
    moves its Job's deadline on, and that shows from everywhere.

    Args:
      proxy: The proxy.
      user: Who asks; another's are kept.
      host: This machine's name.
      is_alive: Whether there is a process of that id on this machine.
      now: Seconds since 1970.
      ahead_s: How far ahead a living session keeps the deadline.
    """
    holder, mine = proxy.holder, label_value(user)
    moved_lately = proxy.ends_at is None or proxy.ends_at - now > _MOVED_LATELY * ahead_s
    elsewhere = (
        f"process {proxy.pid} is gone here, but its deadline was moved on a moment ago: it may "
        "live in another container called the same; if not, its proxy ends by itself"
    )
    reasons = (
        (holder.user != mine, f"it is {holder.user or 'nobody'}'s, and you are {mine}"),
        (
            holder.host != host,
            f"it was made on {holder.host or 'an unknown host'}, and this is {host}",
        ),
        (not proxy.pid, "it does not tell which process it was made for"),
        (bool(proxy.pid) and is_alive(proxy.pid), f"process {proxy.pid} lives"),
        (proxy.state == "deleting", "it is being deleted"),
        (proxy.state != "ended" and moved_lately, elsewhere),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _state(job: Mapping[str, Any]) -> str:
    if (job.get("metadata") or {}).get("deletionTimestamp"):
        return "deleting"
    if any(condition(job, kind).get("status") == "True" for kind in ("Complete", "Failed")):
        return "ended"
    return "running" if (job.get("status") or {}).get("ready") else "starting"


def _seconds(stamp: object) -> float | None:
    try:
        return datetime.datetime.fromisoformat(str(stamp)).timestamp()
    except ValueError:
        return None
