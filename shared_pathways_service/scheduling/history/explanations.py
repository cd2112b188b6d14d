"""Explains in plain sentences why a tenant waits, was moved, was refused, or ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.decisions import Decision, sentence, span
from shared_pathways_service.scheduling.book.holdings import QueueEntry, StatusReport, TenantStatus
from shared_pathways_service.scheduling.book.states import (
    TenantState,
    VirtualSliceState,
)
from shared_pathways_service.scheduling.history.expectation import Expectation

__all__ = ["Explanation", "Holding", "explain"]

#: Holders, and tenants ahead in the queue, that a sentence names at most.
_NAMED = 5
#: Decisions that end a tenant.
_ENDS = frozenset(
    {
        DecisionKind.REFUSED,
        DecisionKind.RELEASED,
        DecisionKind.EXPIRED,
        DecisionKind.FORGOTTEN,
    }
)


#: Decisions by which a tenant starts or stops running without ending.
_MOVED = frozenset({DecisionKind.RUNNING, DecisionKind.PREEMPTED, DecisionKind.IDLED})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Holding:
    """A slice and its holder.

    Attributes:
      since: When the holding began, by the core's clock.
    """

    tenant: str
    user: str
    host: str
    slice_id: str
    instance_type: str
    since: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The explanation of one tenant's state.

    Attributes:
      state: As in the status; of an ended tenant: gone.
      sentences: The explanation, for people.
      position: The place in the queue; None: it is not queued.
      wants: Slices that it waits for, by instance type.
      free: By these types: slices that it could take now, were it first in line; of a running
        tenant by the types of its missing slices.
      holders: The holdings of these types; of a running tenant: its own.
      ahead: Tenants that are before it in a line of these types.
      expectation: The expected wait; None: it does not wait.
      decisions: The last decisions about it, the oldest first.
    """

    tenant: str
    state: TenantState
    sentences: tuple[str, ...]
    position: int | None = None
    wants: Mapping[str, int] = dataclasses.field(default_factory=dict)
    free: Mapping[str, int] = dataclasses.field(default_factory=dict)
    holders: tuple[Holding, ...] = ()
    ahead: tuple[str, ...] = ()
    expectation: Expectation | None = None
    decisions: tuple[Decision, ...] = ()


def explain(
    name: str,
    report: StatusReport,
    decisions: Sequence[Decision],
    expectations: Mapping[str, Expectation],
    now: float,
) -> Explanation | None:
    """Explains one tenant, which may be gone; None: no tenant of that name is known.

    The decisions are the last ones about the tenant, the oldest first.
    """
    tenant = next((one for one in report.tenants if one.name == name), None)
    entry = next((one for one in report.queue if one.tenant == name), None)
    if tenant is None:
        return _explain_gone(name, decisions, now) if decisions else None
    if tenant.state is TenantState.IDLE:
        explanation = _explain_parked(tenant, decisions, now)
    elif entry is None:
        explanation = _explain_running(tenant, report, decisions, now)
    else:
        explanation = _explain_waiting(tenant, entry, report, expectations.get(name), now)
    said = list(explanation.sentences)
    if not tenant.connected:
        said.append("Its proxy is not connected; it is given up unless it comes back")
    moved = [one for one in decisions if one.kind in _MOVED]
    if entry is not None and moved and moved[-1].kind != DecisionKind.RUNNING:
        said.append(f"Last, {sentence(moved[-1])}")
    return dataclasses.replace(explanation, sentences=tuple(said), decisions=tuple(decisions))


def _explain_waiting(
    tenant: TenantStatus,
    entry: QueueEntry,
    report: StatusReport,
    expectation: Expectation | None,
    now: float,
) -> Explanation:
    holders = tuple(_holdings(report, entry.wants))
    place = report.queue.index(entry)
    before = [one.tenant for one in report.queue[:place] if one.wants.keys() & entry.wants.keys()]
    wants = " and ".join(f"{count} x {kind}" for kind, count in entry.wants.items())
    place_now = f"at position {entry.position} with priority {tenant.priority}"
    said = [
        f"{tenant.name} waits for {wants} for {span(entry.waiting_s)}, {place_now}: {entry.reason}",
        *_of_holders(holders, now),
    ]
    said += _of_reservations(report, entry.wants)
    if before:
        said.append(f"Before it: {_listed(before)}")
    if expectation is not None and expectation.wait_s is not None:
        wait = span(expectation.wait_s)
        said.append(f"It may expect to wait {wait} more, going by {expectation.basis}")
    elif expectation is not None:
        said.append(f"How long it will wait is not known: {expectation.basis}")
    return Explanation(
        tenant=tenant.name,
        state=tenant.state,
        sentences=tuple(said),
        position=entry.position,
        wants=entry.wants,
        free=tenant.free,
        holders=holders,
        ahead=tuple(before),
        expectation=expectation,
    )


def _explain_running(
    tenant: TenantStatus, report: StatusReport, decisions: Sequence[Decision], now: float
) -> Explanation:
    holdings = tuple(one for one in _holdings(report) if one.tenant == tenant.name)
    said = [f"{tenant.name} is {tenant.state} with {len(holdings)} of {len(tenant.slices)} slices"]
    said += [f"It holds {one.slice_id} for {span(now - one.since)}" for one in holdings]
    if tenant.preempting_by:
        left = span(tenant.preempting_s)
        said.append(f"It is about to be preempted, in {left}, by {tenant.preempting_by}")
    if tenant.idle_release_s is not None and tenant.idle_s is not None:
        idle, left = span(tenant.idle_s), span(tenant.idle_release_s)
        said.append(f"It is idle for {idle}; its slices are taken back in {left} if it stays so")
    missing = [one for one in tenant.slices if one.state is VirtualSliceState.UNPLACED]
    for one in missing:
        kind = one.instance_type
        free = tenant.free[kind]
        said.append(f"Its slice {one.index} waits for a {kind}, of which {free} are free for it")
    moved = [one for one in decisions if one.kind == DecisionKind.UNPLACED]
    if moved:
        said.append(f"Last, {sentence(moved[-1])}")
    return Explanation(
        tenant=tenant.name,
        state=tenant.state,
        sentences=tuple(said),
        free=tenant.free,
        holders=holdings,
    )


def _explain_parked(tenant: TenantStatus, decisions: Sequence[Decision], now: float) -> Explanation:
    held_nothing = span(now - tenant.since)
    said = [
        f"{tenant.name} is idle and holds nothing for {held_nothing}",
        "It asks for its slices again as soon as it computes, compiles or moves data",
    ]
    taken = [one for one in decisions if one.kind == DecisionKind.IDLED]
    if taken:
        said.append(f"Last, {sentence(taken[-1])}")
    return Explanation(tenant=tenant.name, state=tenant.state, sentences=tuple(said))


def _explain_gone(name: str, decisions: Sequence[Decision], now: float) -> Explanation:
    ends = [one for one in decisions if one.kind in _ENDS]
    said = f"{name} is gone, and why is too long ago to be known"
    if ends:
        said = f"{name} is gone for {span(now - ends[-1].time)}: {sentence(ends[-1])}"
    return Explanation(
        tenant=name, state=TenantState.GONE, sentences=(said,), decisions=tuple(decisions)
    )


def _holdings(report: StatusReport, types: Mapping[str, int] | None = None) -> Iterator[Holding]:
    """Yields the holdings of some types or of all, the longest first."""
    tenants = {tenant.name: tenant for tenant in report.tenants}
    held = [
        (one.held_since, one)
        for one in report.slices
        if one.held_since is not None and (types is None or one.instance_type in types)
    ]
    for since, one in sorted(held, key=lambda pair: pair[0]):
        holder = tenants[one.tenant]
        yield Holding(
            tenant=holder.name,
            user=holder.user,
            host=holder.host,
            slice_id=one.id,
            instance_type=one.instance_type,
            since=since,
        )


def _of_holders(holders: Sequence[Holding], now: float) -> Iterator[str]:
    for one in holders[:_NAMED]:
        who = f" ({one.user}@{one.host})" if one.user and one.host else ""
        yield f"{one.tenant}{who} holds {one.slice_id} for {span(now - one.since)}"
    if len(holders) > _NAMED:
        yield f"and {len(holders) - _NAMED} more slices are held"


def _of_reservations(report: StatusReport, types: Mapping[str, int]) -> Iterator[str]:
    for one in report.reservations[:_NAMED]:
        about = one.reservation
        if about.instance_type in types:
            yield (
                f"{about.count} x {about.instance_type} are reserved {about.said} ({about.name}), "
                f"which holds {one.held} of them"
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
