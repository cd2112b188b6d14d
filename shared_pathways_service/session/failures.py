"""Chooses the error of a failed session, from events of the home and the state of the session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.errors import (
    AccessDenied,
    CapacityError,
    InvalidRequestError,
    PlacementTimeout,
    ProxyFailed,
    ServiceNotReady,
    SharedPathwaysError,
    SliceLost,
    SlicesTaken,
    TunnelError,
    from_json,
)
from shared_pathways_service.events import rfc3339
from shared_pathways_service.events import session as ev
from shared_pathways_service.events.tenants import TenantRefused
from shared_pathways_service.session.holder_text import holdings
from shared_pathways_service.session.link_view import LinkView
from shared_pathways_service.session.messages import Phase, Snapshot
from shared_pathways_service.session.proxy_ends import when_exited

__all__ = [
    "is_denial",
    "refusal_in",
    "when_lost",
    "when_out_of_queue",
    "when_out_of_time",
    "when_refused",
    "with_last_line",
]

_REFUSALS = ("slices_taken", "unknown_type", "too_many", "lost", "released", "limit")
_FUTILE_HINT = "waiting alone does not help; `sps status` shows the state of each slice"
_QUEUE_HINT = "queue_timeout=SECONDS waits for them; `sps status` shows who holds what"


def when_refused(
    request: SessionRequest, event: TenantRefused, more_slices: str = ""
) -> SharedPathwaysError:
    """Returns the error for a refusal.

    Args:
      request: What was refused.
      event: The refusal.
      more_slices: How the user gets a service with more slices; empty: others decide that.
    """
    message = event.message or event.reason or "the resource manager refused the request"
    kind = event.refusal
    tenant = request.tenant
    wanted = dict(Counter(tenant.type_names))
    if kind == "slices_taken":
        waiting = _QUEUE_HINT if tenant.queue_timeout_s is None else "a longer queue_timeout helps"
        waiting = _FUTILE_HINT if event.waiting_is_futile else waiting
        return SlicesTaken(
            _with_sentence(message, holdings(event.holders, wanted)),
            wanted=dict(event.wanted) or wanted,
            free=dict(event.free),
            holders=event.holders,
            position=event.position or None,
            spares=dict(event.spares),
            hint="; ".join(filter(None, [waiting, *_spares_hint(event.spares), more_slices])),
        )
    if kind == "limit":
        return CapacityError(message, hint="whoever runs the service set this limit")
    if kind == "failed_precondition":
        return CapacityError(message, hint="`sps status` shows what the service has")
    if kind in ("unknown_type", "too_many"):
        types = ", ".join(event.types) or "what the service has"
        expected = f"one of {types}" if kind == "unknown_type" else "no more than the service has"
        return InvalidRequestError(
            "expected_tpu_instances",
            _as_text(wanted),
            expected,
            message="; ".join([message, *_spares_hint(event.spares)]),
            hint=more_slices,
        )
    if kind == "lost":
        indices = range(len(tenant.virtual_slices))
        return SliceLost(message, slices=indices, reason=event.reason or message)
    return ProxyFailed(f"the slices of {request.name} were given back: {message}")


def refusal_in(exited: ev.ProxyExited) -> TenantRefused | None:
    """Returns the refusal in a proxy's exit report; None: the proxy ended for another reason."""
    report = exited.report
    if report.get("kind") not in _REFUSALS:
        return None
    position, is_futile = report.get("position"), report.get("waiting_is_futile")
    return TenantRefused(
        reason=exited.reason,
        refusal=str(report["kind"]),
        message=str(report.get("reason") or exited.reason or ""),
        wanted=report.get("wanted") or {},
        free=report.get("free") or {},
        holders=tuple(map(str, report.get("holders") or ())),
        position=position if isinstance(position, int) else None,
        types=tuple(map(str, report.get("types") or ())),
        spares=report.get("spares") or {},
        waiting_is_futile=is_futile if isinstance(is_futile, bool) else None,
    )


def when_lost(
    request: SessionRequest,
    event: ev.ProxyLost,
    *,
    served: bool = True,
    link: LinkView | None = None,
) -> SharedPathwaysError:
    """Returns the error for an unrequested end of the proxy, or a loss of the view of it.

    Once the proxy has `served`, JAX may have been attached. `link` is the last known state of a
    resumable link.
    """
    denied = _denial_in(request, event)
    if denied is not None:
        return denied
    if isinstance(event, ev.HomeLost):
        return TunnelError(
            f"the service of {request.name} is gone, or out of sight: "
            f"{event.reason or 'no reason'}",
            cause=event.reason or "",
            hint="connect again; `sps status` shows whether there is a service",
        )
    if isinstance(event, ev.TunnelBroken):
        return _when_broken(request, event, link if link is not None and link.is_lost else None)
    if not isinstance(event, ev.ProxyExited):
        return ProxyFailed(
            f"the proxy {request.name} was deleted from outside this session"
            + (f": {event.reason}" if event.reason else ""),
            hint="connect again",
        )
    return when_exited(request, event, served=served)


def _when_broken(
    request: SessionRequest, event: ev.TunnelBroken, lost_link: LinkView | None
) -> TunnelError:
    reason = event.reason or "no reason"
    if not event.was_resumable:
        return TunnelError(
            f"the tunnel to the proxy {request.name} broke: {reason}; "
            "JAX cannot resume a connection",
            pod=request.name,
            cause=event.reason or "",
            hint="connect again",
        )
    since = ""
    if lost_link is not None:
        why = lost_link.reason or "no reason"
        since = f"; it was lost at {rfc3339(lost_link.lost_at)}: {why}"
    return TunnelError(
        f"the link to the proxy {request.name} is gone for good: {reason}{since}. "
        "The arrays and programs on its slices are lost",
        pod=request.name,
        cause=event.reason or "",
        hint="connect again, and load a checkpoint; docs/elastic.md shows how to keep some",
    )


def is_denial(event: ev.HomeLost | ev.TunnelBroken) -> bool:
    """Whether the view was lost for a missing permission."""
    return event.error.get("type") == AccessDenied.__name__


def _denial_in(request: SessionRequest, event: ev.ProxyLost) -> SharedPathwaysError | None:
    """Returns the error if the view was lost for a missing permission; else None."""
    if not isinstance(event, ev.HomeLost | ev.TunnelBroken) or not is_denial(event):
        return None
    error = event.error
    message = f"the session of {request.name} cannot go on: {error['message']}"
    return from_json({**error, "message": message})


def when_out_of_queue(request: SessionRequest, snapshot: Snapshot) -> SlicesTaken:
    """Returns the error for a queue that exceeded its timeout."""
    # (Google's resource manager does not report positions.)
    at = f" and was then at position {snapshot.position} of the queue"
    return SlicesTaken(
        f"{request.name} waited {request.tenant.queue_timeout_s:g} s for its slices"
        + ("" if snapshot.position is None else at)
        + _held_by(snapshot.holders),
        wanted=Counter(request.tenant.type_names),
        holders=snapshot.holders,
        position=snapshot.position,
        hint="a longer queue_timeout may help; `sps status` shows who holds what",
    )


def when_out_of_time(
    request: SessionRequest,
    snapshot: Snapshot,
    last_event: str,
    waited_for: ev.ServiceWaiting | None = None,
) -> SharedPathwaysError:
    """Returns the error for a step that timed out, which follows from the phase."""
    within = f"within {request.timeout_s:g} s"
    hint = "a longer timeout= helps where the service is slow; `sps status` shows what there is"
    match snapshot.phase:
        case Phase.PREFLIGHT:
            if waited_for is not None:
                return _not_ready(waited_for, within, hint)
            return ServiceNotReady(f"the service did not answer {within}", hint=hint)
        case Phase.CREATE:
            return ProxyFailed(
                f"the service did not answer {within} whether it has created the proxy "
                f"{request.name}",
                hint=hint,
            )
        case Phase.TUNNEL | Phase.PROBE:
            return TunnelError(
                f"the proxy {request.name} could not be reached {within} at "
                f"{snapshot.address or 'its pod'}",
                pod=snapshot.pod or snapshot.address,
                cause="timed out",
                hint=hint,
            )
        case Phase.PLACE:
            placed = sum(view.state == "placed" for view in snapshot.slices)
            return PlacementTimeout(
                f"{placed} of {request.tenant.gang} slices of {request.name} were placed {within}"
                f"{_held_by(snapshot.holders)}",
                placed=placed,
                wanted=request.tenant.gang,
                last_line=last_event,
                holders=snapshot.holders,
                hint="`sps status` shows who holds what",
            )
        case _:
            why = f"; the last event was {last_event}" if last_event else ""
            return ProxyFailed(
                f"the proxy {request.name} did not begin to serve {within}{why}", hint=hint
            )


def with_last_line(error: PlacementTimeout, line: str) -> PlacementTimeout:
    """Returns the error with the last line of the proxy's log instead of the last event."""
    return PlacementTimeout(
        f"{error.message}; the proxy's log ends with: {line}",
        placed=error.placed,
        wanted=error.wanted,
        last_line=line,
        holders=error.holders,
        hint=error.hint,
    )


def _not_ready(event: ev.ServiceWaiting, within: str, hint: str) -> ServiceNotReady:
    return ServiceNotReady(
        f"the service was not ready {within}: {event.reason}",
        ready=event.ready or 0,
        wanted=event.wanted or 0,
        pods=event.pods,
        hint=hint,
    )


def _spares_hint(spares: Mapping[str, int]) -> list[str]:
    """Returns hints on how to get slices reserved as spares; empty if there are none."""
    if not spares:
        return []
    counts = ", ".join(f"{count} x {name}" for name, count in spares.items())
    without = "`sps serve --spares 0`, or in a cluster `sps upgrade NAME --spares 0`, keeps none"
    return [f"{counts} would do, but the service keeps spares: {without}"]


def _with_sentence(message: str, more: str) -> str:
    """Returns a message followed by another sentence, or unchanged if there is none."""
    return f"{message[0].upper()}{message[1:]}. {more}." if more else message


def _held_by(holders: Sequence[str]) -> str:
    return f"; {holdings(holders)}" if holders else ""


def _as_text(wanted: Mapping[str, int]) -> str:
    return ",".join(f"{name}={count}" for name, count in wanted.items())
