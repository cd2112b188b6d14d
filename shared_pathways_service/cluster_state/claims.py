"""Reads from pods which slices proxies hold, for services whose resource manager does not say.

Google's resource manager does not report holders, and its proxy's log does not distinguish a slice
that is placed slowly from one that another tenant holds. The other proxies' pods do: their
arguments name their service and slices. Only a proxy's log says whether its slices are placed.
Proxies whose log does not say so are assumed to be placed in the order in which they started.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from shared_pathways_service.cluster_state.services import Service, flags_of
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.names import Holder, holder_of

__all__ = ["POD_SELECTOR", "Claim", "Shortage", "claims_to_check", "find_shortage", "read_claims"]

_LABEL_JOB: Final = "job-name"
#: Selects the pods of Jobs, except those of a JobSet such as a service's own.
POD_SELECTOR: Final = f"{_LABEL_JOB},!{names.LABEL_JOBSET}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """Slices of a service that a running proxy needs.

    Attributes:
      holder: The proxy's Job, and its user if the Job names one.
      slices: Slices by instance type, without those that the proxy can start without.
      since: When its container started (RFC 3339, UTC).
      virtual_slices: Instance types, one per virtual slice.
      elastic_slices: The number of slices that may be missing at the start.
      placed: Whether its slices are known to be placed.
    """

    holder: Holder
    slices: Mapping[str, int]
    since: str
    pod: str
    virtual_slices: tuple[str, ...]
    elastic_slices: int
    placed: bool

    @property
    def order(self) -> tuple[bool, str, str]:
        """Sort key: placed claims first, then by start time."""
        return not self.placed, self.since, self.holder.name

    @property
    def key(self) -> tuple[str, str]:
        """The identity of one run of the proxy's container."""
        return self.pod, self.since


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shortage:
    """The reason why a proxy cannot be placed now.

    Attributes:
      wanted: Slices by instance type.
      free: Free slices of the types of which too few are free.
      holders: The holders of the other slices.
      waiting: Proxies that have waited longer for these slices.
      reason: A sentence with all of this.
    """

    wanted: Mapping[str, int]
    free: Mapping[str, int]
    holders: tuple[str, ...]
    waiting: tuple[str, ...] = ()
    reason: str


def read_claims(
    service: Service,
    pods: Iterable[Mapping[str, Any]],
    placed: Collection[tuple[str, str]] = (),
) -> list[Claim]:
    """Returns the claims of the service's proxies that run and are not being deleted.

    Args:
      service: The service.
      pods: Pods of its namespace; see `POD_SELECTOR`.
      placed: Keys of claims that are known to be placed.
    """
    claims = [claim for pod in pods if (claim := _claim(service, pod, placed)) is not None]
    return sorted(claims, key=lambda claim: claim.order)


def claims_to_check(service: Service, name: str, claims: Sequence[Claim]) -> list[Claim]:
    """Returns the other claims whose placement matters to the Job, because not all claims fit."""
    mine = next((claim for claim in claims if claim.holder.name == name), None)
    if mine is None:
        return []
    wanted = sum((Counter(claim.slices) for claim in claims), Counter[str]())
    scarce = {kind for kind in mine.slices if _exceeds(wanted[kind], service.instances.get(kind))}
    others = [claim for claim in claims if claim is not mine and not claim.placed]
    return [claim for claim in others if any(claim.slices.get(kind) for kind in scarce)]


def find_shortage(service: Service, name: str, claims: Sequence[Claim]) -> Shortage | None:
    """Returns why other proxies leave too few slices for a Job's proxy; None: they leave enough.

    Only proxies count that are placed or started earlier, and of these only the ones whose claims
    fit into what earlier ones leave. The others also wait, and hold no slices. If two start at the
    same time and do not both fit, exactly one counts as later.
    """
    mine = next((claim for claim in claims if claim.holder.name == name), None)
    if mine is None:
        return None
    free = Counter(service.instances)
    holding: list[Claim] = []
    waiting: list[Claim] = []
    for claim in sorted(claims, key=lambda claim: claim.order):
        short = [kind for kind, count in claim.slices.items() if _exceeds(count, free.get(kind))]
        if claim is mine:
            break
        (waiting if short else holding).append(claim)
        if not short:
            free.subtract({kind: claim.slices[kind] for kind in claim.slices if kind in free})
    if not short:
        return None
    parts = [
        f"other connections hold {service.instances[kind] - free[kind]} of "
        f"{service.instances[kind]} {kind} slices ({mine.slices[kind]} wanted)"
        for kind in short
    ]
    queue = tuple(str(c.holder) for c in waiting if any(c.slices.get(k) for k in short))
    if queue:
        parts.append(f"waiting for longer: {', '.join(queue)}")
    return Shortage(
        wanted=dict(mine.slices),
        free={kind: free[kind] for kind in short},
        holders=tuple(str(c.holder) for c in holding if any(c.slices.get(k) for k in short)),
        waiting=queue,
        reason="; ".join(parts),
    )


def _exceeds(count: int, free: int | None) -> bool:
    # (For types that the service does not name, the number of free slices is unknown.)
    return free is not None and count > free


def _claim(
    service: Service, pod: Mapping[str, Any], placed: Collection[tuple[str, str]]
) -> Claim | None:
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    containers = (pod.get("spec") or {}).get("containers") or ()
    proxy = next((c for c in containers if c.get("name") == names.PROXY_CONTAINER), None)
    statuses = status.get("containerStatuses") or ()
    states = (s.get("state") or {} for s in statuses if s.get("name") == names.PROXY_CONTAINER)
    running = next(states, {}).get("running")
    if proxy is None or running is None or metadata.get("deletionTimestamp"):
        return None
    flags = flags_of(proxy)
    if _place(flags.get("resource_manager_address", "")) != _place(service.address):
        return None
    kinds = [kind for kind in flags.get("virtual_slices", "").split(",") if kind]
    elastic = flags.get("num_elastic_slices", "")
    spare = int(elastic) if elastic.isdecimal() else 0
    # It is unknown which of several types may be missing: count as many of each as possible.
    slices = {kind: max(0, count - spare) for kind, count in Counter(kinds).items()}
    job = str(names.labels_of(pod).get(_LABEL_JOB, ""))
    holder = dataclasses.replace(
        holder_of(pod), name=job, instances=names.instances_text(kinds), service=service.name
    )
    key = str(metadata.get("name") or ""), str(running.get("startedAt") or "")
    return Claim(
        holder=holder,
        slices=slices,
        since=key[1],
        pod=key[0],
        virtual_slices=tuple(kinds),
        elastic_slices=spare,
        placed=key in placed,
    )


def _place(address: str) -> tuple[str, str]:
    """Returns a resource manager's host within its namespace, and its port."""
    host, _, port = address.lower().rpartition(":")
    # NAME.SUBDOMAIN, with or without the namespace and the cluster's domain.
    return ".".join(host.split(".")[:2]), port
