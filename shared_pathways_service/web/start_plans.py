"""Which slices come from which tenants, and when: for preemptions and reservations.

A preemption is a plan of the resource manager: slices that it keeps for the preemptor, and tenants
under notice. A reservation takes no slice from a holder: its slices are those that its owner's
tenants hold, free ones, and those of other tenants in the order of their stated ends.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

from shared_pathways_service.events import rfc3339
from shared_pathways_service.protocol import resource_manager_pb2 as pb

__all__ = ["plans_of"]

#: ``kept``: for this tenant, free already. ``preempted``: its holder is under notice. ``held``: by
#: a tenant of the reservation's owner. ``free``: by no tenant. ``ends``: its holder stated an end.
#: ``unknown``: its holder did not.
_How: TypeAlias = Literal["kept", "preempted", "held", "free", "ends", "unknown"]

#: States in which a slice without a holder is out of service by an operator's request.
_WITHDRAWN = ("cordoned", "draining")


def plans_of(status: pb.GetStatusResponse) -> list[dict[str, Any]]:
    """Returns the plans of a service.

    Returns:
      For each waiting tenant that preempts, and each reservation that does not hold all its slices
      yet: ``id``, its ``tenant`` or ``reservation`` (the other one is null), ``wants`` by instance
      type, ``starts`` of a reservation, ``sources``, and ``missing``: slices without a source. A
      source has ``slice``, ``instance_type``, ``holder``, ``how`` (`_How`), and the time ``at``
      which the slice is to be had; null: now, or not known.
    """
    slices = _Slices(status)
    plans = [_plan_of_tenant(entry, slices) for entry in status.queue]
    plans += [_plan_of_reservation(one, slices) for one in status.reservations]
    return [plan for plan in plans if plan is not None]


class _Slices:
    """The slices of a service, by what the plans need of them."""

    def __init__(self, status: pb.GetStatusResponse) -> None:
        self.tenants = {tenant.name: tenant for tenant in status.tenants}
        self.kept: dict[str, list[pb.SliceStatus]] = collections.defaultdict(list)
        self.taken: dict[str, list[pb.SliceStatus]] = collections.defaultdict(list)
        self.held: dict[str, list[pb.SliceStatus]] = collections.defaultdict(list)
        self.free: dict[str, list[pb.SliceStatus]] = collections.defaultdict(list)
        withdrawn: collections.Counter[str] = collections.Counter()
        for one in status.slices:
            if one.state in _WITHDRAWN and not one.tenant:
                withdrawn[one.instance_type] += 1
            if one.state != "ready":
                continue
            if one.kept_for:
                self.kept[one.kept_for].append(one)
            elif one.tenant:
                self.held[one.instance_type].append(one)
                if victim := self.holder_of(one).preemptor:
                    self.taken[victim].append(one)
            else:
                self.free[one.instance_type].append(one)
        # Spares are no particular slices: so many free ones of each type are not to be had, except
        # those that stand in for withdrawn ones. (That a slice is both lost and cordoned is not
        # told; then one free slice too few is shown.)
        for kind, free in self.free.items():
            spares = max(0, status.spares - withdrawn[kind])
            del free[max(0, len(free) - spares) :]

    def holder_of(self, one: pb.SliceStatus) -> pb.TenantStatus:
        return self.tenants.get(one.tenant) or pb.TenantStatus(name=one.tenant)


def _plan_of_tenant(entry: pb.QueueEntry, slices: _Slices) -> dict[str, Any] | None:
    """Plans for a tenant in the queue; None: nothing is kept for it, and it preempts no tenant."""
    found: list[dict[str, Any]] = []
    missing = 0
    for kind, count in entry.wants.items():
        kept = [one for one in slices.kept[entry.tenant] if one.instance_type == kind]
        taken = [one for one in slices.taken[entry.tenant] if one.instance_type == kind]
        taken.sort(key=lambda one: slices.holder_of(one).preempting_at)
        sources = [_source(one, "kept") for one in kept]
        sources += [_source(one, "preempted", slices.holder_of(one).preempting_at) for one in taken]
        found += sources[:count]
        missing += max(0, count - len(sources))
    if not found:
        return None
    return {
        "id": f"tenant {entry.tenant}",
        "tenant": entry.tenant,
        "reservation": None,
        "wants": dict(entry.wants),
        "starts": None,
        "sources": found,
        "missing": missing,
    }


def _plan_of_reservation(one: pb.ReservationStatus, slices: _Slices) -> dict[str, Any] | None:
    """Plans for a reservation; None: its owner's tenants hold all of it."""
    if one.held >= one.count:
        return None
    held = slices.held[one.instance_type]
    own = [found for found in held if _is_owner(one, slices.holder_of(found))]
    others = [found for found in held if not _is_owner(one, slices.holder_of(found))]
    sources = [
        *(_source(found, "held") for found in own[: one.held]),
        *(_source(found, "free") for found in slices.free[one.instance_type]),
        *_in_order_of_ends(others, slices),
    ][: one.count]
    return {
        "id": f"reservation {one.name}",
        "tenant": None,
        "reservation": one.name,
        "wants": {one.instance_type: one.count},
        "starts": rfc3339(one.starts),
        "sources": sources,
        "missing": one.count - len(sources),
    }


def _in_order_of_ends(held: Sequence[pb.SliceStatus], slices: _Slices) -> Iterator[dict[str, Any]]:
    ends = [(slices.holder_of(one).ends, one) for one in held]
    for end, one in sorted(ends, key=lambda pair: (not pair[0], pair[0])):
        yield _source(one, "ends", end) if end else _source(one, "unknown")


def _is_owner(one: pb.ReservationStatus, tenant: pb.TenantStatus) -> bool:
    return tenant.user == one.user if one.user else tenant.team == one.team


def _source(one: pb.SliceStatus, how: _How, at: str = "") -> dict[str, Any]:
    return {
        "slice": one.id,
        "instance_type": one.instance_type,
        "holder": one.tenant or None,
        "how": how,
        "at": at or None,
    }
