"""Validates requests to the history, and creates the messages of its answers."""

from __future__ import annotations

from shared_pathways_service.api.validation import check_dns_label
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.events import LAST_MOMENT, Scalar, rfc3339
from shared_pathways_service.events.recorded_decisions import KINDS
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.history.explanations import Explanation, Holding
from shared_pathways_service.scheduling.history.usage import UsageBy
from shared_pathways_service.servers.resource_manager.history_table import Filter

__all__ = [
    "decision_message",
    "explanation_message",
    "filter_of",
    "follow_filter_of",
    "usage_by",
    "window_of",
]

#: In full, and the parts before and after the dot.
_KINDS = frozenset(name for kind in KINDS for name in (kind, *kind.split(".", 1)))


def decision_message(number: int, decision: Decision) -> pb.EventMessage:
    """Creates the message of a decision with its number in the history; 0: without a number."""
    known: dict[str, Scalar] = {
        "user": decision.user,
        "team": decision.team,
        "virtual_index": decision.virtual_index,
        "generation": decision.generation or None,
        "instance_type": decision.instance_type,
        "related": decision.related,
    }
    message = pb.EventMessage(
        kind=decision.kind,
        source="rm",
        time=rfc3339(decision.time),
        tenant=decision.tenant or None,
        slice=decision.slice or None,
        duration_s=decision.duration_s,
        reason=decision.reason or None,
        sequence=number,
    )
    message.data.update({name: value for name, value in known.items() if value not in {None, ""}})
    return message


def filter_of(request: pb.GetHistoryRequest, now: float) -> Filter:
    """Creates the filter of a request.

    Raises:
      InvalidRequestError: Naming the field.
    """
    since, until = window_of(request.since, request.until, now)
    if request.tenant:
        check_dns_label("tenant", request.tenant)
    kinds = _kinds_of(request)
    return Filter(since=since, until=until, tenant=request.tenant, kinds=kinds)


def follow_filter_of(request: pb.WatchRequest) -> Filter:
    """Creates the filter of a watch with `after`.

    Raises:
      InvalidRequestError: Naming the field.
    """
    return Filter(tenant=request.tenant, kinds=_kinds_of(request))


def _kinds_of(request: pb.GetHistoryRequest | pb.WatchRequest) -> tuple[str, ...]:
    for kind in request.kinds:
        if kind not in _KINDS:
            # (A kind of a later release in the history is only sent when no kinds are selected.)
            raise InvalidRequestError("kinds", kind, f"one of {', '.join(sorted(KINDS))}")
    return tuple(request.kinds)


def window_of(since: float, until: float, now: float) -> tuple[float | None, float | None]:
    """Returns the start and end of a window as times; None: unbounded.

    Raises:
      InvalidRequestError: The window is not valid.
    """
    for field, value in (("since", since), ("until", until)):
        if not abs(value) <= LAST_MOMENT:
            expected = "seconds since the epoch, to the year 9999, or negative: before now"
            raise InvalidRequestError(field, value, expected)
    begin = since if since > 0 else now + since
    end = until if until > 0 else now + until
    if begin > end:
        raise InvalidRequestError("since", rfc3339(begin), f"a time not behind {rfc3339(end)}")
    return begin if since else None, end if until else None


def usage_by(request: pb.GetUsageRequest) -> UsageBy:
    """Returns the key by which usage is grouped.

    Raises:
      InvalidRequestError: There is no such key.
    """
    try:
        return UsageBy(request.by)
    except ValueError:
        raise InvalidRequestError("by", request.by, f"one of {', '.join(UsageBy)}") from None


def explanation_message(explanation: Explanation, now: float) -> pb.ExplainResponse:
    """Creates the answer of `Explain`."""
    expected = explanation.expectation
    return pb.ExplainResponse(
        tenant=explanation.tenant,
        state=explanation.state,
        sentences=explanation.sentences,
        position=explanation.position,
        wants=explanation.wants,
        free=explanation.free,
        holders=[_holding(one, now) for one in explanation.holders],
        ahead=explanation.ahead,
        expected_wait_s=None if expected is None else expected.wait_s,
        expected_wait_basis="" if expected is None else expected.basis,
        decisions=[decision_message(0, one) for one in explanation.decisions],
        time=rfc3339(now),
    )


def _holding(one: Holding, now: float) -> pb.Holding:
    return pb.Holding(
        tenant=one.tenant,
        user=one.user,
        host=one.host,
        slice_id=one.slice_id,
        instance_type=one.instance_type,
        since=rfc3339(one.since),
        held_s=max(0.0, now - one.since),
    )
